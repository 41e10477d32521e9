//! Repeats one work so many times, without output: `instructions NAME COUNT`. To count the
//! instructions of one repetition, run it under a counter with two counts and take the difference.

fn main() -> Result<(), String> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [name, count] = arguments.as_slice() else {
        return Err("usage: instructions NAME COUNT".into());
    };
    let work = micro::named(name).ok_or_else(|| format!("no work has the name {name}"))?;
    let count: u64 = count.parse().map_err(|_| format!("{count} is not a number"))?;
    let mut once = (work.prepare)();
    for _ in 0..count {
        once();
    }
    Ok(())
}
