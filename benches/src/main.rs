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
    let mut missed = false;
    let mut print = |rows: Vec<Row>| {
        for row in rows {
            println!("{row}");
            missed |= row.is_missed();
        }
    };
    println!("| what | figure | target | holds |\n|---|---|---|---|");
    print(vec![decision::decide()]);
    runtime.block_on(async {
        print(calls::read_level().await?);
        print(calls::write_level().await?);
        print(process::connect_per_call().await?);
        print(vec![listing::discovery().await?]);
        print(vec![listing::servers_page().await?]);
        print(process::idle_memory().await?);
        anyhow::Ok(())
    })?;
    anyhow::ensure!(!missed, "a target does not hold");
    Ok(())
}
