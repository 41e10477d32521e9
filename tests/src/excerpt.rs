//! What a failed test shows of the log of a process, which is deleted with the test.

/// The number of lines of warnings and errors, and of last lines, that an excerpt has.
const WARNINGS_MAX: usize = 10;
const LAST_MAX: usize = 20;

/// The maximum length of a line, in characters.
const LINE_MAX: usize = 300;

/// Prints the excerpt of an output. The harness shows what a test prints only if the test fails, which
/// what is dropped at its end cannot know.
#[allow(clippy::print_stdout)]
pub(crate) fn show(name: &str, output: &str) {
    println!("{}", excerpt(name, output));
}

/// The last warnings and errors of an output, then its last lines.
fn excerpt(name: &str, output: &str) -> String {
    let lines: Vec<&str> = output.lines().collect();
    let (before, last) = lines.split_at(lines.len().saturating_sub(LAST_MAX));
    // Of a node, and of nginx.
    let marks = [" WARN ", " ERROR ", "[warn]", "[error]"];
    let is_warning = |line: &&&str| marks.iter().any(|mark| line.contains(mark));
    let mut warnings: Vec<&str> =
        before.iter().rev().filter(is_warning).take(WARNINGS_MAX).copied().collect();
    warnings.reverse();
    let mut text = format!("{name}: {} lines; warnings, and the last lines:\n", lines.len());
    for line in warnings.iter().chain(last) {
        text.extend(line.chars().take(LINE_MAX));
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_excerpt_has_early_warnings_and_the_last_lines_in_their_order() {
        let lines: Vec<String> = (0..100)
            .map(|line| match line % 3 {
                0 => format!("{line} WARN w"),
                _ => format!("{line} INFO i {}", "x".repeat(1_000)),
            })
            .collect();
        let text = excerpt("node1", &lines.join("\n"));
        let numbers: Vec<u32> = text
            .lines()
            .skip(1)
            .map(|line| line.split(' ').next().and_then(|n| n.parse().ok()).expect("a number"))
            .collect();
        let warnings = (0..80).filter(|line| line % 3 == 0).skip(17);
        assert_eq!(numbers, warnings.chain(80..100).collect::<Vec<_>>());
        assert!(text.lines().all(|line| line.chars().count() <= LINE_MAX));
    }
}
