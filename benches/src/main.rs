//! Speed, as ratios from one run on one machine: what caliber adds to the work that has to be done anyway.
//!
//! `cargo run --release -p benches` prints the table of the README. Absolute times differ from machine to machine;
//! both sides of a ratio are measured in turns within the same run.

mod bare;
mod calls;
mod decision;
mod listing;
mod measure;
mod process;
mod setup;
mod upstream;

use measure::Row;

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut rows: Vec<Row> = vec![decision::decide()];
    runtime.block_on(async {
        rows.extend(calls::read_level().await?);
        rows.extend(calls::write_level().await?);
        rows.extend(process::connect_per_call().await?);
        rows.push(listing::discovery().await?);
        rows.push(listing::servers_page().await?);
        rows.extend(process::idle_memory().await?);
        anyhow::Ok(())
    })?;
    println!("| what | figure | target | holds |\n|---|---|---|---|");
    for row in &rows {
        println!("{row}");
    }
    anyhow::ensure!(rows.iter().all(Row::holds), "a target does not hold");
    Ok(())
}
