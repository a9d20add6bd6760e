//! The results: a table with medians and ratios, and all figures as CSV.

use std::fmt::Write as _;

use crate::DEPTHS;
use crate::ways::{BOULDER, IN_LUA, Outcome, WEIR, WEIR_NEW};

/// What one way did in one round.
pub(crate) struct Row {
    pub(crate) round: usize,
    pub(crate) way: &'static str,
    pub(crate) outcome: Outcome,
    pub(crate) depth: usize,
    pub(crate) decisions_a_second: f64,
    pub(crate) cpu_micros: f64,
}

/// Each figure's column and the text for its heading.
const WAYS: [&str; 4] = [WEIR, WEIR_NEW, IN_LUA, BOULDER];

pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    for outcome in Outcome::ALL {
        let _ = writeln!(text, "\n### Redis CPU a decision, {}\n", outcome.name());
        text += "| depth | weir to lua | weir with expiry to lua | weir to boulder |";
        text += " weir µs | with expiry µs | lua µs | boulder µs |";
        text += " weir decisions/s | lua decisions/s | boulder decisions/s |\n";
        text += "| --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |\n";
        for depth in DEPTHS {
            text += &line(rows, outcome, depth);
        }
    }
    text
}

fn line(rows: &[Row], outcome: Outcome, depth: usize) -> String {
    let of = |way: &'static str, figure: fn(&Row) -> f64| -> Vec<f64> {
        let here = |row: &&Row| row.way == way && row.outcome == outcome && row.depth == depth;
        rows.iter().filter(here).map(figure).collect()
    };
    let cpu = |way| of(way, |row| row.cpu_micros);
    let ratio = |way, other| {
        let pairs = cpu(way).into_iter().zip(cpu(other));
        spread(pairs.map(|(one, other)| one / other).collect())
    };
    let mut text = format!(
        "| {depth} | {} | {} | {} |",
        ratio(WEIR, IN_LUA),
        ratio(WEIR_NEW, IN_LUA),
        ratio(WEIR, BOULDER)
    );
    for way in WAYS {
        let _ = write!(text, " {:.2} |", median(&mut cpu(way)));
    }
    for way in [WEIR, IN_LUA, BOULDER] {
        let rate = median(&mut of(way, |row| row.decisions_a_second));
        let _ = write!(text, " {rate:.0} |");
    }
    text + "\n"
}

/// The median, and the least and the greatest.
fn spread(mut ratios: Vec<f64>) -> String {
    let median = median(&mut ratios);
    let (least, greatest) = (ratios.first(), ratios.last());
    let (least, greatest) = (least.copied().unwrap(), greatest.copied().unwrap());
    format!("{median:.2} ({least:.2}–{greatest:.2})")
}

/// It leaves the figures sorted.
fn median(figures: &mut [f64]) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap()
}

pub(crate) fn csv(rows: &[Row]) -> String {
    let mut text = "round,way,outcome,depth,decisions_a_second,redis_cpu_us\n".to_owned();
    for row in rows {
        let _ = writeln!(
            text,
            "{},\"{}\",{},{},{:.0},{:.3}",
            row.round,
            row.way,
            row.outcome.name(),
            row.depth,
            row.decisions_a_second,
            row.cpu_micros
        );
    }
    text
}
