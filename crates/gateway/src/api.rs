//! The two APIs that clients speak, and their endpoints.

use std::fmt;

/// An API: the paths, bodies and errors that an SDK expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Api {
    /// OpenAI's, which many other providers and model servers speak.
    OpenAi,
    /// Anthropic's.
    Anthropic,
}

impl Api {
    /// The value of `api` in a configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Api::OpenAi => "openai",
            Api::Anthropic => "anthropic",
        }
    }

    /// The API that a path belongs to, for the shape of an error. Anthropic owns `/v1/messages` and the paths below it.
    /// Paths that both APIs have belong to the one whose version header the request carries.
    #[must_use]
    pub fn of(path: &str, has_anthropic_version: bool) -> Api {
        if is_below(path, "/v1/messages") || path == "/v1/complete" {
            return Api::Anthropic;
        }
        let is_openai =
            Endpoint::ALL.into_iter().any(|endpoint| endpoint != Endpoint::Models && endpoint.path() == path);
        if has_anthropic_version && !is_openai { Api::Anthropic } else { Api::OpenAi }
    }
}

impl fmt::Display for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Whether `path` is `parent` or below it.
fn is_below(path: &str, parent: &str) -> bool {
    path.strip_prefix(parent).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// An endpoint that the gateway serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Endpoint {
    /// `POST /v1/chat/completions`.
    Chat,
    /// `POST /v1/completions`.
    Completions,
    /// `POST /v1/embeddings`.
    Embeddings,
    /// `POST /v1/responses`.
    Responses,
    /// `GET /v1/models`, which the gateway answers from its configuration.
    Models,
    /// `POST /v1/messages`.
    Messages,
    /// `POST /v1/messages/count_tokens`, which generates nothing.
    CountTokens,
    /// A configured route with a flat charge.
    Flat,
}

impl Endpoint {
    /// The endpoints with a path of their own.
    const ALL: [Endpoint; 7] = [
        Endpoint::Chat,
        Endpoint::Completions,
        Endpoint::Embeddings,
        Endpoint::Responses,
        Endpoint::Models,
        Endpoint::Messages,
        Endpoint::CountTokens,
    ];

    /// The endpoint of a request. `None` is 404, in the shape of [`Api::of`]. The path comes without its query. It must
    /// match to the byte: a path with `//`, `..` or `%` is no endpoint, so that no upstream reads it differently.
    #[must_use]
    pub fn of(method: &str, path: &str) -> Option<Endpoint> {
        Endpoint::ALL.into_iter().find(|endpoint| endpoint.path() == path && endpoint.method() == method)
    }

    /// The method of the endpoint's requests.
    #[must_use]
    pub const fn method(self) -> &'static str {
        match self {
            Endpoint::Models => "GET",
            _ => "POST",
        }
    }

    /// The path at the gateway. A flat route has its own, in the configuration.
    #[must_use]
    pub const fn path(self) -> &'static str {
        match self {
            Endpoint::Chat => "/v1/chat/completions",
            Endpoint::Completions => "/v1/completions",
            Endpoint::Embeddings => "/v1/embeddings",
            Endpoint::Responses => "/v1/responses",
            Endpoint::Models => "/v1/models",
            Endpoint::Messages => "/v1/messages",
            Endpoint::CountTokens => "/v1/messages/count_tokens",
            Endpoint::Flat => "",
        }
    }

    /// The path behind an upstream's `base_url`, which is what the provider's SDK takes: OpenAI's ends in `/v1`,
    /// Anthropic's does not.
    #[must_use]
    pub fn upstream_path(self) -> &'static str {
        match self.api() {
            Some(Api::OpenAi) => self.path().strip_prefix("/v1").unwrap_or_default(),
            Some(Api::Anthropic) | None => self.path(),
        }
    }

    /// The API that the endpoint belongs to. `None` for a flat route, whose upstream has an API.
    #[must_use]
    pub const fn api(self) -> Option<Api> {
        match self {
            Endpoint::Chat | Endpoint::Completions | Endpoint::Embeddings | Endpoint::Responses | Endpoint::Models => {
                Some(Api::OpenAi)
            }
            Endpoint::Messages | Endpoint::CountTokens => Some(Api::Anthropic),
            Endpoint::Flat => None,
        }
    }

    /// The attribute `operation` of the endpoint's calls.
    #[must_use]
    pub const fn operation(self) -> &'static str {
        match self {
            Endpoint::Chat => "chat",
            Endpoint::Completions => "completions",
            Endpoint::Embeddings => "embeddings",
            Endpoint::Responses => "responses",
            Endpoint::Models => "models",
            Endpoint::Messages => "messages",
            Endpoint::CountTokens => "count_tokens",
            Endpoint::Flat => "flat",
        }
    }

    /// Whether a call generates tokens, so that it needs a cap on its output.
    #[must_use]
    pub const fn generates(self) -> bool {
        matches!(self, Endpoint::Chat | Endpoint::Completions | Endpoint::Responses | Endpoint::Messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_endpoint_is_found_by_its_own_method_and_path_only() {
        for endpoint in Endpoint::ALL {
            assert_eq!(Endpoint::of(endpoint.method(), endpoint.path()), Some(endpoint));
            let other = if endpoint.method() == "GET" { "POST" } else { "GET" };
            assert_eq!(Endpoint::of(other, endpoint.path()), None);
        }
    }

    #[test]
    fn a_path_that_an_upstream_could_read_differently_is_no_endpoint() {
        for path in [
            "/v1/chat/completions/",
            "/v1//chat/completions",
            "/v1/chat/../chat/completions",
            "/v1/chat%2Fcompletions",
            "/V1/chat/completions",
            "/chat/completions",
            "/v1/files",
            "",
            "/",
        ] {
            assert_eq!(Endpoint::of("POST", path), None, "{path}");
        }
    }

    #[test]
    fn upstream_paths_continue_the_base_url_of_each_sdk() {
        assert_eq!(Endpoint::Chat.upstream_path(), "/chat/completions");
        assert_eq!(Endpoint::Responses.upstream_path(), "/responses");
        assert_eq!(Endpoint::Messages.upstream_path(), "/v1/messages");
        assert_eq!(Endpoint::CountTokens.upstream_path(), "/v1/messages/count_tokens");
    }

    #[test]
    fn errors_have_the_shape_of_the_api_that_the_path_belongs_to() {
        let check = |path, has_version, api| assert_eq!(Api::of(path, has_version), api, "{path} {has_version}");
        check("/v1/messages", false, Api::Anthropic);
        check("/v1/messages/batches", false, Api::Anthropic);
        check("/v1/messagesx", false, Api::OpenAi);
        check("/v1/complete", false, Api::Anthropic);
        check("/v1/chat/completions", true, Api::OpenAi);
        check("/v1/models", true, Api::Anthropic);
        check("/v1/models", false, Api::OpenAi);
        check("/v1/files", true, Api::Anthropic);
        check("/v1/files", false, Api::OpenAi);
    }
}
