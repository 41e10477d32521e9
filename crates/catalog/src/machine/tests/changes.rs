//! Lists that change: the notifications that the client gets.

use super::*;

fn change(bench: &mut Bench, child: usize) -> usize {
    bench.told();
    bench.server(child, &json!({"jsonrpc":"2.0","method":"notifications/resources/list_changed"}));
    bench.told().len()
}

fn answer_list(bench: &mut Bench, child: usize, method: &str, member: &str) {
    let (_, request) = bench.sent(child, method).expect("the list is read");
    bench.server(child, &json!({"jsonrpc":"2.0","id":request["id"],"result":{ member: [] }}));
}

#[test]
fn a_client_that_reads_only_templates_is_told_of_each_change() {
    let mut bench = Bench::ready(&["a"]);
    for (method, member) in [
        ("resources/templates/list", "resourceTemplates"),
        ("resources/list", "resources"),
        ("resources/templates/list", "resourceTemplates"),
    ] {
        bench.now += 2_000;
        assert_eq!(change(&mut bench, 0), 1, "before {method}");
        bench.now += 2_000;
        assert_eq!(change(&mut bench, 0), 0, "the client has not asked since");
        bench.request(method, json!({}));
        answer_list(&mut bench, 0, method, member);
    }
}
