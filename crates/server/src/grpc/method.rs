//! The table of gRPC methods.

use super::leases;
use crate::caller::{Access, QueueCost};

/// One value per service.
pub(super) struct Services<T> {
    pub(super) limits: T,
    /// The stream `Leases`, which has its own bound on messages.
    pub(super) leases: T,
    pub(super) calls: T,
    pub(super) ledger: T,
    pub(super) cluster: T,
    /// Envoy's rate limit service.
    pub(super) rate_limit: T,
    pub(super) health: T,
    pub(super) reflection: T,
    pub(super) reflection_alpha: T,
}

/// Which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Which {
    Limits,
    Leases,
    Calls,
    Ledger,
    Cluster,
    RateLimit,
    Health,
    Reflection,
    ReflectionAlpha,
}

impl Which {
    pub(super) fn of<T>(self, services: &Services<T>) -> &T {
        match self {
            Which::Limits => &services.limits,
            Which::Leases => &services.leases,
            Which::Calls => &services.calls,
            Which::Ledger => &services.ledger,
            Which::Cluster => &services.cluster,
            Which::RateLimit => &services.rate_limit,
            Which::Health => &services.health,
            Which::Reflection => &services.reflection,
            Which::ReflectionAlpha => &services.reflection_alpha,
        }
    }
}

/// The form of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One request message, one response message.
    Unary,
    /// A stream. An endless one lasts until the server drains, others until the request timeout.
    Stream { is_endless: bool },
}

/// One method.
#[derive(Debug)]
pub(crate) struct Method {
    /// The request path, and the label in metrics.
    pub(crate) path: &'static str,
    pub(super) service: Which,
    pub(super) form: Form,
    pub(crate) access: Access,
    pub(super) queue_cost: QueueCost,
}

const fn unary(service: Which, access: Access, path: &'static str) -> Method {
    Method { path, service, form: Form::Unary, access, queue_cost: QueueCost::One }
}

const fn batch(service: Which, access: Access, path: &'static str) -> Method {
    Method { path, service, form: Form::Unary, access, queue_cost: QueueCost::PerItem }
}

const fn stream(service: Which, access: Access, path: &'static str, is_endless: bool) -> Method {
    Method { path, service, form: Form::Stream { is_endless }, access, queue_cost: QueueCost::One }
}

/// Methods of other packages: Envoy's rate limit service, health and reflection.
const OTHERS: usize = 5;

/// All methods. A method of our package without a row does not compile.
pub(crate) static METHODS: [Method; earmark_proto::METHODS.len() + OTHERS] = [
    unary(Which::Limits, Access::Call, "/earmark.v1.LimitsService/Reserve"),
    unary(Which::Limits, Access::Settle, "/earmark.v1.LimitsService/Extend"),
    unary(Which::Limits, Access::Settle, "/earmark.v1.LimitsService/Complete"),
    batch(Which::Limits, Access::Call, "/earmark.v1.LimitsService/ReserveBatch"),
    batch(Which::Limits, Access::Settle, "/earmark.v1.LimitsService/ExtendBatch"),
    batch(Which::Limits, Access::Settle, "/earmark.v1.LimitsService/CompleteBatch"),
    stream(Which::Leases, leases::ACCESS, "/earmark.v1.LimitsService/Leases", true),
    unary(Which::Limits, Access::Write, "/earmark.v1.LimitsService/PutLimit"),
    unary(Which::Limits, Access::Read, "/earmark.v1.LimitsService/GetLimit"),
    batch(Which::Limits, Access::ReadLimits, "/earmark.v1.LimitsService/ListLimits"),
    unary(Which::Limits, Access::Write, "/earmark.v1.LimitsService/DeleteLimit"),
    unary(Which::Limits, Access::Pause, "/earmark.v1.LimitsService/PauseLimit"),
    unary(Which::Limits, Access::Read, "/earmark.v1.LimitsService/GetUsage"),
    unary(Which::Limits, Access::Write, "/earmark.v1.LimitsService/PutTemplate"),
    batch(Which::Limits, Access::ReadLimits, "/earmark.v1.LimitsService/ListTemplates"),
    unary(Which::Limits, Access::Write, "/earmark.v1.LimitsService/DeleteTemplate"),
    batch(Which::Limits, Access::Read, "/earmark.v1.LimitsService/ListUsage"),
    batch(Which::Limits, Access::Read, "/earmark.v1.LimitsService/ListDecisions"),
    unary(Which::Limits, Access::Read, "/earmark.v1.LimitsService/GetTop"),
    unary(Which::Limits, Access::Read, "/earmark.v1.LimitsService/GetLease"),
    unary(Which::Limits, Access::Operate, "/earmark.v1.LimitsService/GetQuotas"),
    unary(Which::Limits, Access::Operate, "/earmark.v1.LimitsService/PutQuotas"),
    unary(Which::Limits, Access::Operate, "/earmark.v1.LimitsService/GetPolicy"),
    unary(Which::Limits, Access::Operate, "/earmark.v1.LimitsService/PutPolicy"),
    unary(Which::Calls, Access::Call, "/earmark.v1.CallsService/Call"),
    batch(Which::Calls, Access::Call, "/earmark.v1.CallsService/CallBatch"),
    unary(Which::Calls, Access::Settle, "/earmark.v1.CallsService/ExtendCall"),
    unary(Which::Calls, Access::Settle, "/earmark.v1.CallsService/CompleteCall"),
    batch(Which::Calls, Access::Settle, "/earmark.v1.CallsService/CompleteCallBatch"),
    unary(Which::Calls, Access::Explain, "/earmark.v1.CallsService/ExplainCall"),
    unary(Which::Limits, Access::Identify, "/earmark.v1.LimitsService/Whoami"),
    batch(Which::Ledger, Access::Write, "/earmark.v1.LedgerService/Write"),
    batch(Which::Ledger, Access::Write, "/earmark.v1.LedgerService/BatchWrite"),
    unary(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/GetClientState"),
    unary(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/GetBalances"),
    unary(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/GetGrants"),
    batch(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/ListVaults"),
    batch(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/ListAccounts"),
    batch(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/ListEntries"),
    batch(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/GetStatement"),
    batch(Which::Ledger, Access::Read, "/earmark.v1.LedgerService/AuditVault"),
    unary(Which::Cluster, Access::Operate, "/earmark.v1.ClusterService/CreateInvitation"),
    unary(Which::Cluster, Access::Operate, "/earmark.v1.ClusterService/ListInvitations"),
    unary(Which::Cluster, Access::Operate, "/earmark.v1.ClusterService/RevokeInvitation"),
    unary(Which::Cluster, Access::Operate, "/earmark.v1.ClusterService/ListSigningKeys"),
    unary(Which::RateLimit, Access::Proxy, "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"),
    unary(Which::Health, Access::Public, "/grpc.health.v1.Health/Check"),
    stream(Which::Health, Access::Public, "/grpc.health.v1.Health/Watch", true),
    stream(Which::Reflection, Access::Public, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", false),
    stream(
        Which::ReflectionAlpha,
        Access::Public,
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        false,
    ),
];

/// A method and its index in the table.
pub(super) fn find(path: &str) -> Option<(usize, &'static Method)> {
    METHODS.iter().enumerate().find(|(_, method)| method.path == path)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message as _;

    use super::*;

    /// Reflection describes exactly the methods that have a row, with the same form.
    #[test]
    fn every_described_method_has_a_row_and_every_row_a_method() {
        let sets = [
            earmark_proto::FILE_DESCRIPTOR_SET,
            earmark_proto::ENVOY_FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut described = BTreeSet::new();
        for set in sets {
            for file in prost_types::FileDescriptorSet::decode(set).unwrap().file {
                for service in &file.service {
                    described.extend(service.method.iter().map(|method| {
                        let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                        (path, method.client_streaming() || method.server_streaming())
                    }));
                }
            }
        }
        let row = |method: &Method| (method.path.to_owned(), method.form != Form::Unary);
        assert_eq!(METHODS.iter().map(row).collect::<BTreeSet<_>>(), described);
        assert_eq!(METHODS.len(), described.len(), "a method has two rows");
    }
}
