//! rmcp's client, against one node.
#![expect(deprecated, reason = "rmcp deprecates sampling and logging of these revisions")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Result, ensure};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig,
    ClientRequest, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, Implementation, LoggingMessageNotificationParam,
    ProgressNotificationParam, Role, SamplingMessage, SamplingMessageContentBlock, ServerResult,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::{ClientHandler, ErrorData, RoleClient, ServiceExt};
use serde_json::{Value, json};
use tests::proxy::{Cut, Proxy};
use tests::sse::PATIENCE;
use tests::{Node, Setup};

type Client = RunningService<RoleClient, Diary>;

#[tokio::test]
async fn it_takes_the_tour() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let client = connect(&node.demo()).await?;
        let tools = client.list_all_tools().await?;
        ensure!(tools.iter().any(|tool| tool.name == "test_simple_text"));
        let prompts = client.list_all_prompts().await?;
        ensure!(prompts.iter().any(|prompt| prompt.name == "test_simple_prompt"));
        let resources = client.list_all_resources().await?;
        ensure!(resources.iter().any(|resource| resource.uri == "test://static-text"));
        let result = client.call_tool(CallToolRequestParams::new("test_simple_text")).await?;
        ensure!(text(&result) == "This is a simple text response for testing.", "{result:?}");
        client.cancel().await?;
    }
    Ok(())
}

#[tokio::test]
async fn it_sees_progress_and_lends_model_and_user() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let client = connect(&node.demo()).await?;
        count(&client).await?;
        let result =
            client.call_tool(call("test_sampling", json!({"prompt": "What is it?"}))).await?;
        ensure!(text(&result) == "LLM response: forty-two", "{result:?}");
        let result = client.call_tool(call("test_elicitation", json!({"message": "Who?"}))).await?;
        ensure!(text(&result).contains("ada@example.com"), "{result:?}");
        client.cancel().await?;
    }
    Ok(())
}

#[tokio::test]
async fn it_can_give_up_on_a_call_and_the_server_hears_of_it() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup)?;
        let client = connect(&node.demo()).await?;
        let request = CallToolRequest::new(call("rh_sleep", json!({"ms": 60_000})));
        let request = ClientRequest::CallToolRequest(request);
        let options = PeerRequestOptions::no_options();
        let handle = client.send_cancellable_request(request, options).await?;
        tokio::time::sleep(Duration::from_millis(300)).await;
        handle.cancel(Some("enough".into())).await?;
        let until = tokio::time::Instant::now() + PATIENCE;
        while text(&client.call_tool(call("rh_cancelled", json!({}))).await?) != "1" {
            ensure!(tokio::time::Instant::now() < until, "the server never heard of it");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        client.cancel().await?;
    }
    Ok(())
}

// holds: SSE-07
#[tokio::test]
async fn a_cut_in_mid_call_loses_and_doubles_nothing() -> Result<()> {
    for setup in [Setup::demo(), Setup::fixture()] {
        let node = Node::start(&setup.with("sessions.retry_ms", 100))?;
        for cuts in [vec![1], vec![4], vec![10], vec![2, 3]] {
            let needle = || "notifications/progress".to_owned();
            let due = cuts.iter().map(|after| Cut { needle: needle(), after: *after });
            let proxy = Proxy::start(&node.base, due.collect()).await?;
            let client = connect(&format!("{}/demo/mcp", proxy.base)).await?;
            count(&client).await?;
            ensure!(proxy.cuts() == cuts.len(), "{} cuts", proxy.cuts());
            client.cancel().await?;
        }
    }
    Ok(())
}

async fn connect(url: &str) -> Result<Client> {
    Ok(Diary::default().serve(StreamableHttpClientTransport::from_uri(url)).await?)
}

fn call(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    let Value::Object(arguments) = arguments else { unreachable!("arguments are an object") };
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

fn text(result: &CallToolResult) -> &str {
    result.content[0].as_text().map_or("", |text| text.text.as_str())
}

/// Counts to ten: every step and every log line comes once, the steps in order.
async fn count(client: &Client) -> Result<()> {
    let request = CallToolRequest::new(call("rh_count", json!({"n": 10, "interval_ms": 30})));
    let request = ClientRequest::CallToolRequest(request);
    let handle = client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let response = tokio::time::timeout(PATIENCE, handle.await_response()).await??;
    let ServerResult::CallToolResult(result) = response else { anyhow::bail!("{response:?}") };
    ensure!(text(&result) == "counted to 10", "{result:?}");
    let all: Vec<f64> = (1..=10).map(f64::from).collect();
    // rmcp hands notifications over beside the response, so the last ones may come after it.
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (steps, mut lines) = client.service().read();
        lines.sort_by(f64::total_cmp);
        if steps == all && lines == all {
            return Ok(());
        }
        let late = tokio::time::Instant::now() > until;
        ensure!(!late && steps.len() <= 10 && lines.len() <= 10, "{steps:?} {lines:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A client that writes down what it hears.
#[derive(Clone, Default)]
struct Diary {
    steps: Arc<Mutex<Vec<f64>>>,
    lines: Arc<Mutex<Vec<f64>>>,
}

impl Diary {
    fn read(&self) -> (Vec<f64>, Vec<f64>) {
        (self.steps.lock().expect("whole").clone(), self.lines.lock().expect("whole").clone())
    }
}

impl ClientHandler for Diary {
    fn get_info(&self) -> ClientConfig {
        let capabilities =
            ClientCapabilities::builder().enable_sampling().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("stories", "1"))
    }

    async fn on_progress(
        &self,
        step: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.steps.lock().expect("whole").push(step.progress);
    }

    async fn on_logging_message(
        &self,
        line: LoggingMessageNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        self.lines.lock().expect("whole").extend(line.data["count"].as_f64());
    }

    async fn create_message(
        &self,
        _: CreateMessageRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<CreateMessageResult, ErrorData> {
        let content = SamplingMessageContentBlock::text("forty-two");
        Ok(CreateMessageResult::new(SamplingMessage::new(Role::Assistant, content), "story".into()))
    }

    async fn create_elicitation(
        &self,
        _: ElicitRequestParams,
        _: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let content = json!({"username": "ada", "email": "ada@example.com"});
        Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
    }
}
