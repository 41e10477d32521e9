//! Repeats one piece of work so many times, and says nothing: `instructions NAME COUNT`.
//! Whoever runs it under a counter takes the difference between two counts.

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, count] = arguments.as_slice() else {
        return Err("say which work to repeat, and how many times".into());
    };
    let work = micro::named(name).ok_or_else(|| format!("no work is called {name}"))?;
    let count: u64 = count.parse().map_err(|_| format!("{count} is no number"))?;
    let mut once = (work.prepare)();
    for _ in 0..count {
        once();
    }
    Ok(())
}
