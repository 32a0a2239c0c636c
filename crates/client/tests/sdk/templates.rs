//! Templates over every protocol.

use earmark_client::core::{Definition, Kind, LimitKey, Template};
use earmark_client::{Failure, Job, TryAcquire};

use crate::fixture::{each_way, limiter};
use crate::support::soon;

#[tokio::test]
async fn a_template_limits_each_key_every_way() {
    for (way, client, _server) in each_way().await {
        let pattern = LimitKey::pattern("user:{user}:slots").unwrap();
        let definition = Definition::new(pattern.clone(), Kind::Concurrency { timeout_seconds: 60 }, 2);
        let template = Template::new(definition.clone()).unwrap();
        let revision = client.put_template(&template, soon()).await.unwrap();
        let limiter = limiter(&client);
        let job = |user: &str| Job::new([(LimitKey::new(&format!("user:{user}:slots")).unwrap(), 2)]).unwrap();
        let held = limiter.acquire(&job("a"), soon()).await.unwrap();
        assert!(matches!(limiter.try_acquire(&job("a"), soon()).await.unwrap(), TryAcquire::Denied(_)), "{way}");
        drop(limiter.acquire(&job("b"), soon()).await.unwrap());

        let view = client.limit(&LimitKey::new("user:a:slots").unwrap(), soon()).await.unwrap();
        assert_eq!((view.template, view.revision), (Some(pattern.clone()), revision), "{way}");
        let listed = client.templates(soon()).await.unwrap();
        assert_eq!(listed.len(), 1, "{way}");
        assert_eq!((&listed[0].definition, listed[0].revision, listed[0].live), (&definition, revision, 2), "{way}");

        client.delete_template(&pattern, soon()).await.unwrap();
        let gone = client.delete_template(&pattern, soon()).await;
        assert!(matches!(gone, Err(Failure::NotFound { .. })), "{way}: {gone:?}");
        assert!(client.templates(soon()).await.unwrap().is_empty(), "{way}");
        drop(held);
        assert!(limiter.flush(soon()).await);
    }
}
