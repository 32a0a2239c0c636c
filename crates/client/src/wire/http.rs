//! A server over HTTP.

use super::json;
use super::read::Reader;
use crate::ask::{Answer, Ask};
use crate::deadline::Deadline;
use crate::failure::Failure;
use crate::http::ConnectionPool;

/// A server that is asked in JSON over HTTP.
pub(crate) struct Http(pub(crate) ConnectionPool);

impl Http {
    pub(crate) async fn ask(&self, ask: &Ask, by: Deadline) -> Result<Answer, Failure> {
        let request = json::request(ask).map_err(|error| Failure::Invalid { message: error.to_string() })?;
        let response = self.0.send_by(&request, by).await?;
        json::answer(Reader(self.0.name()), ask, &response)
    }
}
