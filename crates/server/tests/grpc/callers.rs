//! Who may call what. The rows are those of HTTP, by the names of gRPC.

use std::collections::BTreeSet;

use earmark_core::Role;
use earmark_proto::v1;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use crate::calls;
use crate::support::Keyed;

/// Who may: nobody in particular, a reader, a caller, a writer, an admin.
type Row = (&'static str, [bool; 5]);

const ALL: [bool; 5] = [true; 5];
const CALL: [bool; 5] = [false, false, true, false, true];
const WRITE: [bool; 5] = [false, false, false, true, true];
const READ: [bool; 5] = [false, true, false, true, true];

const MATRIX: [Row; 17] = [
    ("/earmark.v1.LimitsService/Reserve", CALL),
    ("/earmark.v1.LimitsService/Complete", CALL),
    ("/earmark.v1.LimitsService/ReserveBatch", CALL),
    ("/earmark.v1.LimitsService/CompleteBatch", CALL),
    ("/earmark.v1.LimitsService/PutLimit", WRITE),
    ("/earmark.v1.LimitsService/GetLimit", READ),
    ("/earmark.v1.LimitsService/ListLimits", READ),
    ("/earmark.v1.LimitsService/DeleteLimit", WRITE),
    ("/earmark.v1.LimitsService/GetUsage", READ),
    ("/earmark.v1.LimitsService/GetLease", READ),
    ("/earmark.v1.LedgerService/Write", WRITE),
    ("/earmark.v1.LedgerService/BatchWrite", WRITE),
    ("/earmark.v1.LedgerService/GetClientState", READ),
    ("/earmark.v1.LedgerService/GetBalances", READ),
    ("/earmark.v1.LedgerService/ListEntries", READ),
    ("/earmark.v1.LedgerService/AuditVault", READ),
    ("/grpc.health.v1.Health/Check", ALL),
];

pub(crate) fn with<T>(key: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(key) = key {
        let value = MetadataValue::try_from(format!("Bearer {key}")).unwrap();
        request.metadata_mut().insert("authorization", value);
    }
    request
}

async fn call(keyed: &Keyed, key: Option<&str>, path: &'static str) -> Result<(), Status> {
    let mut client = Grpc::new(calls::channel(&keyed.desk).await);
    client.ready().await.unwrap();
    let codec: ProstCodec<(), ()> = ProstCodec::default();
    client.unary(with(key, ()), PathAndQuery::from_static(path), codec).await.map(drop)
}

#[tokio::test]
async fn every_method_lets_in_just_the_roles_of_its_row() {
    let keyed = Keyed::open().await;
    let callers = [
        None,
        Some(keyed.key(Role::Reader, "default").await),
        Some(keyed.key(Role::Caller, "default").await),
        Some(keyed.key(Role::Writer, "default").await),
        Some(keyed.key(Role::Admin, "default").await),
    ];
    for (path, row) in MATRIX {
        for (place, is_let_in) in row.into_iter().enumerate() {
            let answer = call(&keyed, callers[place].as_deref(), path).await;
            let code = answer.as_ref().map_or_else(Status::code, |()| Code::Ok);
            let what = format!("{path} by {place}: {answer:?}");
            let refusals = [Code::Unauthenticated, Code::PermissionDenied];
            match (is_let_in, place) {
                (true, _) => assert!(!refusals.contains(&code), "{what}"),
                (false, 0) => assert_eq!(code, Code::Unauthenticated, "{what}"),
                (false, _) => assert_eq!(code, Code::PermissionDenied, "{what}"),
            }
        }
    }
}

#[test]
fn every_method_has_a_row() {
    use prost::Message as _;
    let set = prost_types::FileDescriptorSet::decode(earmark_proto::FILE_DESCRIPTOR_SET).unwrap();
    let mut served = BTreeSet::from(["/grpc.health.v1.Health/Check".to_owned()]);
    for file in set.file {
        for service in file.service {
            let name = format!("{}.{}", file.package.clone().unwrap(), service.name.unwrap());
            served
                .extend(service.method.into_iter().map(|method| format!("/{name}/{}", method.name.unwrap())));
        }
    }
    let rows: BTreeSet<String> = MATRIX.iter().map(|(path, _)| (*path).to_owned()).collect();
    assert_eq!(rows, served);
}

#[tokio::test]
async fn a_key_of_one_namespace_names_no_other_and_a_revoked_one_is_refused_alike() {
    let keyed = Keyed::open().await;
    let key = keyed.key(Role::Admin, "team").await;
    let mut client = calls::limits(&keyed.desk).await;
    client.put_limit(with(Some(&key), calls::rolling("a", 5))).await.unwrap();
    let reserve = |namespace: Option<&str>| v1::ReserveRequest {
        namespace: namespace.map(Into::into),
        ..calls::reserve(&keyed.desk.lease(), &[("a", 1)])
    };
    assert!(client.reserve(with(Some(&key), reserve(None))).await.unwrap().into_inner().allowed);
    assert!(client.reserve(with(Some(&key), reserve(Some("team")))).await.unwrap().into_inner().allowed);
    for namespace in ["default", "nowhere"] {
        let answer = client.reserve(with(Some(&key), reserve(Some(namespace)))).await;
        assert_eq!(calls::refused(answer, Code::PermissionDenied), "the credentials do not allow this");
    }
    let list = v1::ListLimitsRequest { namespace: Some("default".into()) };
    assert_eq!(client.list_limits(with(Some(&key), list)).await.unwrap_err().code(), Code::PermissionDenied);
    let mut ledger = calls::ledger(&keyed.desk).await;
    let write = calls::write(None, 1, Vec::new());
    assert_eq!(ledger.write(with(Some(&key), write)).await.unwrap_err().code(), Code::PermissionDenied);
    keyed.revoke(&key).await;
    let answer = client.reserve(with(Some(&key), reserve(None))).await;
    assert_eq!(calls::refused(answer, Code::Unauthenticated), "the credentials are missing or not valid");
}
