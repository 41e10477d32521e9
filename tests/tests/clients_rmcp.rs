//! rmcp's client, against one node, and behind nginx with three nodes that are replaced or die.
#![expect(deprecated, reason = "rmcp deprecates sampling and logging of these revisions")]

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rmcp::model::{
    CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig,
    ClientRequest, CreateMessageRequestParams, CreateMessageResult, ElicitRequestParams,
    ElicitResult, ElicitationAction, Implementation, LoggingMessageNotificationParam,
    ProgressNotificationParam, Role, SamplingMessage, SamplingMessageContentBlock, ServerResult,
};
use rmcp::service::{NotificationContext, PeerRequestOptions, RequestContext, RunningService};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::StreamableHttpClientTransportConfig;
use rmcp::{ClientHandler, ErrorData, RoleClient, ServiceError, ServiceExt};
use serde_json::{Value, json};
use tests::deployment::Plan;
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
            ensure!(tokio::time::Instant::now() < until, "the server got no cancellation");
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

// holds: SES-10, SSE-07
#[tokio::test]
async fn it_holds_its_session_through_a_rolling_restart() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let client = connect(&cluster.demo()).await?;
    let turns = AtomicUsize::new(0);
    let work = async {
        loop {
            let turn = json!({ "turn": turns.load(Ordering::Relaxed) });
            let echo = client.call_tool(call("rh_echo", turn.clone()));
            let echo = tokio::time::timeout(PATIENCE, echo).await??;
            ensure!(serde_json::from_str::<Value>(text(&echo))? == turn, "{echo:?}");
            count(&client).await?;
            turns.fetch_add(1, Ordering::Relaxed);
        }
    };
    let restarts = async {
        for node in cluster.members()? {
            cluster.restart(&node.name).await?;
            let done = turns.load(Ordering::Relaxed);
            while turns.load(Ordering::Relaxed) < done + 2 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
        anyhow::Ok(())
    };
    let worked: Result<Infallible> = tokio::select! {
        worked = work => worked,
        restarted = restarts => {
            restarted?;
            client.cancel().await?;
            return Ok(());
        }
    };
    worked.map(drop)
}

#[tokio::test]
async fn it_holds_a_session_in_which_it_was_idle_when_nodes_are_killed() -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let client = connect(&cluster.demo()).await?;
    count(&client).await?;
    for name in ["node1", "node2"] {
        cluster.kill(name).await?;
        cluster.start(name).await?;
    }
    cluster.kill("node3").await?;
    still_there(&client).await?;
    client.cancel().await?;
    Ok(())
}

/// The client repeats no POST. A call fails if it is cut before the first event id of its stream,
/// or if its node dies before the head of the answer. So each call here is past its first step.
#[tokio::test]
async fn it_holds_its_session_on_a_stream_that_said_an_id_when_the_first_node_is_killed()
-> Result<()> {
    killed_in_mid_stream("node1").await
}

#[tokio::test]
async fn it_holds_its_session_on_a_stream_that_said_an_id_when_the_second_node_is_killed()
-> Result<()> {
    killed_in_mid_stream("node2").await
}

#[tokio::test]
async fn it_holds_its_session_on_a_stream_that_said_an_id_when_the_third_node_is_killed()
-> Result<()> {
    killed_in_mid_stream("node3").await
}

async fn killed_in_mid_stream(node: &str) -> Result<()> {
    let cluster = Plan::demo().start().await?;
    let client = connect(&cluster.demo()).await?;
    let kill = async {
        until("five steps", || client.service().read().0.len() >= 5).await?;
        cluster.kill(node).await
    };
    let (counted, killed) = tokio::join!(count_to(&client, 60, 50), kill);
    killed?;
    if let Err(error) = counted {
        // A call that ran on that node is not run again: its tool does not permit that.
        let told = error.downcast_ref();
        let is_told = matches!(told, Some(ServiceError::McpError(told)) if told.code.0 == -32000);
        ensure!(is_told, "{error:?}");
    }
    still_there(&client).await?;
    client.cancel().await?;
    Ok(())
}

/// The session continues, and rmcp has not opened another one.
async fn still_there(client: &Client) -> Result<()> {
    for _ in 0..4 {
        let call = client.call_tool(CallToolRequestParams::new("test_simple_text"));
        let result = tokio::time::timeout(PATIENCE, call).await??;
        ensure!(text(&result) == "This is a simple text response for testing.", "{result:?}");
    }
    Ok(())
}

/// A client with the usual settings, except that a session which has ended is an error.
async fn connect(url: &str) -> Result<Client> {
    let config =
        StreamableHttpClientTransportConfig::with_uri(url).reinit_on_expired_session(false);
    let transport = StreamableHttpClientTransport::from_config(config);
    let client = Diary::default().serve(transport).await?;
    let revision = client.peer_info().context("no welcome")?.protocol_version.to_string();
    ensure!(revision == "2025-11-25", "{revision} may have no sessions");
    Ok(client)
}

/// Waits until a condition is true.
async fn until(what: &str, has_come: impl Fn() -> bool) -> Result<()> {
    let until = tokio::time::Instant::now() + PATIENCE;
    while !has_come() {
        ensure!(tokio::time::Instant::now() < until, "no {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

fn call(tool: &'static str, arguments: Value) -> CallToolRequestParams {
    let Value::Object(arguments) = arguments else { unreachable!("arguments are an object") };
    CallToolRequestParams::new(tool).with_arguments(arguments)
}

fn text(result: &CallToolResult) -> &str {
    result.content[0].as_text().map_or("", |text| text.text.as_str())
}

/// Counts to ten.
async fn count(client: &Client) -> Result<()> {
    count_to(client, 10, 30).await
}

/// Counts: every step and every log line comes once, and the steps come in order.
async fn count_to(client: &Client, n: u32, interval_ms: u64) -> Result<()> {
    client.service().begin();
    let arguments = json!({"n": n, "interval_ms": interval_ms});
    let request = CallToolRequest::new(call("rh_count", arguments));
    let request = ClientRequest::CallToolRequest(request);
    let handle = client.send_cancellable_request(request, PeerRequestOptions::no_options()).await?;
    let response = tokio::time::timeout(PATIENCE, handle.await_response()).await??;
    let ServerResult::CallToolResult(result) = response else { anyhow::bail!("{response:?}") };
    ensure!(text(&result) == format!("counted to {n}"), "{result:?}");
    let all: Vec<f64> = (1..=n).map(f64::from).collect();
    // rmcp delivers notifications concurrently with the response, so the last ones may come after
    // it.
    let until = tokio::time::Instant::now() + PATIENCE;
    loop {
        let (steps, mut lines) = client.service().read();
        lines.sort_by(f64::total_cmp);
        if steps == all && lines == all {
            return Ok(());
        }
        let late = tokio::time::Instant::now() > until;
        ensure!(
            !late && steps.len() <= all.len() && lines.len() <= all.len(),
            "{steps:?} {lines:?}"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A client that records its notifications.
#[derive(Clone, Default)]
struct Diary {
    steps: Arc<Mutex<Vec<f64>>>,
    lines: Arc<Mutex<Vec<f64>>>,
}

impl Diary {
    /// Starts a new record.
    fn begin(&self) {
        self.steps.lock().expect("whole").clear();
        self.lines.lock().expect("whole").clear();
    }

    fn read(&self) -> (Vec<f64>, Vec<f64>) {
        (self.steps.lock().expect("whole").clone(), self.lines.lock().expect("whole").clone())
    }
}

impl ClientHandler for Diary {
    fn get_info(&self) -> ClientConfig {
        let capabilities =
            ClientCapabilities::builder().enable_sampling().enable_elicitation().build();
        ClientConfig::new(capabilities, Implementation::new("scenarios", "1"))
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
        Ok(CreateMessageResult::new(
            SamplingMessage::new(Role::Assistant, content),
            "scenario".into(),
        ))
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
