//! `earmark.v1.ClusterService`.

use earmark_admission::ClusterError;
use earmark_proto::v1::cluster_service_client::ClusterServiceClient;
use earmark_proto::v1::{
    CreateInvitationRequest, ListInvitationsRequest, ListSigningKeysRequest, RevokeInvitationRequest,
};
use tonic::Code;

use super::calls::{channel, refused};
use crate::support::{Nodes, TestServer};

#[tokio::test]
async fn an_invitation_is_made_over_grpc_as_over_http() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let mut client = ClusterServiceClient::new(channel(&server).await);
    let request = |uses, expires_seconds| CreateInvitationRequest { uses, expires_seconds };
    for (asked, made) in [(request(None, None), "1_Some(3600)"), (request(Some(3), Some(0)), "3_None")] {
        let answer = client.create_invitation(asked).await.unwrap().into_inner();
        assert!(answer.invitation.ends_with(made), "{answer:?}");
    }
    let listed = client.list_invitations(ListInvitationsRequest {}).await.unwrap().into_inner().invitations;
    assert_eq!((listed.len(), &*listed[0].id, listed[0].expires_at_unix_ms), (2, "0123456789abcdef", Some(7)));
    let revoke = |id: &str| RevokeInvitationRequest { id: id.into() };
    client.revoke_invitation(revoke("0123456789abcdef")).await.unwrap();
    refused(client.revoke_invitation(revoke("7")).await, Code::InvalidArgument);
    let message = refused(client.create_invitation(request(Some(65), None)).await, Code::InvalidArgument);
    assert_eq!(message, "uses: found 65, allowed are integers from 1 to 64");
    let full = TestServer::with_nodes(Nodes(Err(ClusterError::Refused("too many are open".into())))).await;
    let mut client = ClusterServiceClient::new(channel(&full).await);
    let message = refused(client.create_invitation(request(None, None)).await, Code::FailedPrecondition);
    assert_eq!(message, "too many are open");
    let memory = TestServer::open().await;
    let mut client = ClusterServiceClient::new(channel(&memory).await);
    refused(client.create_invitation(request(None, None)).await, Code::NotFound);
}

#[tokio::test]
async fn the_public_keys_of_nodes_are_listed_over_grpc_as_over_http() {
    let server = TestServer::with_nodes(Nodes(Ok(()))).await;
    let mut client = ClusterServiceClient::new(channel(&server).await);
    let keys = client.list_signing_keys(ListSigningKeysRequest {}).await.unwrap().into_inner().keys;
    let facts = |at: usize| (keys[at].node_id, keys[at].is_member, keys[at].published_at_unix_ms);
    assert_eq!((keys.len(), facts(0), facts(1)), (2, (1, true, 7), (5, false, 7)));
    assert_eq!((&*keys[0].public_key, &*keys[0].cluster_id), (&*"5a".repeat(32), &*format!("{:032x}", 0xab)));
    let memory = TestServer::open().await;
    let mut client = ClusterServiceClient::new(channel(&memory).await);
    refused(client.list_signing_keys(ListSigningKeysRequest {}).await, Code::NotFound);
}
