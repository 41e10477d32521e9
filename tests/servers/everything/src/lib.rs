//! The fixture server: the features that the conformance suite and our own tests need.
//!
//! One [`Everything`] is one session of the handshake revisions (2024-11-05 to 2025-11-25). It is
//! written with `rmcp` alone and does not depend on Roundhouse. It can be mounted in a node or run
//! as a program, and must behave the same in both cases. It never reads a file or opens a socket,
//! and writes only to the file that `EVERYTHING_RECORD` names.

#![expect(deprecated, reason = "rmcp deprecates logging, sampling and roots of these revisions")]

mod ask;
mod completion;
mod paging;
mod prompts;
mod resources;
mod session;
mod tools;

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CompleteRequestParams, CompleteResult, CustomRequest,
    CustomResult, ErrorCode, GetPromptRequestParams, GetPromptResponse, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig, SetLevelRequestParams, SubscribeRequestParams,
    UnsubscribeRequestParams,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};

use crate::session::Session;

/// One session of the fixture server. Clones share the session.
#[derive(Clone, Debug, Default)]
pub struct Everything {
    session: Arc<Session>,
    page_items_max: Option<usize>,
    is_program: bool,
}

impl Everything {
    /// A session of a server that shares its process with others.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, but every list is divided into pages of so many items (at least one).
    pub fn with_page_items_max(mut self, items: usize) -> Self {
        self.page_items_max = Some(items.max(1));
        self
    }

    /// The same, but as the only session of its process: `rh_crash` ends the process instead of
    /// panicking, and `rh_env` lists the names of its environment variables.
    pub fn as_program(mut self) -> Self {
        self.is_program = true;
        self
    }

    /// The requested page of `items`, and the cursor of the next page.
    fn page<T>(
        &self,
        list: &str,
        items: Vec<T>,
        request: Option<PaginatedRequestParams>,
    ) -> Result<(Vec<T>, Option<String>), ErrorData> {
        let cursor = request.and_then(|request| request.cursor);
        paging::page(list, items, cursor.as_deref(), self.page_items_max)
    }
}

type Context = RequestContext<RoleServer>;

impl ServerHandler for Everything {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_logging()
            .enable_completions()
            .enable_prompts()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_tools()
            .enable_tool_list_changed()
            .build();
        ServerConfig::new(capabilities)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
            .with_server_info(Implementation::new("everything", env!("CARGO_PKG_VERSION")))
            .with_instructions("A server for tests: it shows every feature of MCP.")
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        Cow::Borrowed(ProtocolVersion::known_up_to(&ProtocolVersion::LATEST_WITH_INITIALIZE))
    }

    async fn list_tools(
        &self,
        request: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListToolsResult, ErrorData> {
        let (tools, next) = self.page("tools", tools::list(&self.session), request)?;
        let mut result = ListToolsResult::with_all_items(tools);
        result.next_cursor = next;
        Ok(result)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: Context,
    ) -> Result<CallToolResponse, ErrorData> {
        tools::call(self, request, context).await.map(CallToolResponse::Complete)
    }

    async fn list_resources(
        &self,
        request: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourcesResult, ErrorData> {
        let (resources, next) = self.page("resources", resources::list(), request)?;
        let mut result = ListResourcesResult::with_all_items(resources);
        result.next_cursor = next;
        Ok(result)
    }

    async fn list_resource_templates(
        &self,
        request: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let (templates, next) = self.page("templates", resources::templates(), request)?;
        let mut result = ListResourceTemplatesResult::with_all_items(templates);
        result.next_cursor = next;
        Ok(result)
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        resources::read(&request.uri).map(Into::into)
    }

    async fn subscribe(
        &self,
        request: SubscribeRequestParams,
        _: Context,
    ) -> Result<(), ErrorData> {
        resources::read(&request.uri)?;
        self.session.subscribe(request.uri)
    }

    async fn unsubscribe(
        &self,
        request: UnsubscribeRequestParams,
        _: Context,
    ) -> Result<(), ErrorData> {
        self.session.unsubscribe(&request.uri);
        Ok(())
    }

    async fn list_prompts(
        &self,
        request: Option<PaginatedRequestParams>,
        _: Context,
    ) -> Result<ListPromptsResult, ErrorData> {
        let (prompts, next) = self.page("prompts", prompts::list(), request)?;
        let mut result = ListPromptsResult::with_all_items(prompts);
        result.next_cursor = next;
        Ok(result)
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        _: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        prompts::get(&request.name, request.arguments).map(Into::into)
    }

    async fn complete(
        &self,
        request: CompleteRequestParams,
        _: Context,
    ) -> Result<CompleteResult, ErrorData> {
        completion::complete(&request)
    }

    async fn set_level(&self, request: SetLevelRequestParams, _: Context) -> Result<(), ErrorData> {
        self.session.set_level(request.level);
        Ok(())
    }

    /// `rmcp` calls this for a request with an unknown method, and also for a request with a known
    /// method whose parameters it could not read.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: Context,
    ) -> Result<CustomResult, ErrorData> {
        const KNOWN: [&str; 8] = [
            "completion/complete",
            "initialize",
            "logging/setLevel",
            "prompts/get",
            "resources/read",
            "resources/subscribe",
            "resources/unsubscribe",
            "tools/call",
        ];
        if KNOWN.contains(&request.method.as_str()) || request.method.ends_with("/list") {
            let message = format!("the parameters are not those of {}", request.method);
            return Err(ErrorData::invalid_params(message, None));
        }
        Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, request.method, None))
    }
}
