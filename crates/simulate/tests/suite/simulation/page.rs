//! The report as a page.

use contract_id::contract;
use routing::Policy;
use simulate::{CellReport, SimulationReport, TraceSummary, html, run};

use super::{cell, line, read};

fn report(file: &str) -> SimulationReport {
    let trace = read(&[line(0, &[1, 2], 3), line(500, &[1, 2, 3], 3)].join("\n"));
    let reports =
        |policy| -> [CellReport; 2] { [2, 4].map(|workers| run(&trace, &cell(policy, workers))) };
    let file = file.to_owned();
    SimulationReport {
        schema: SimulationReport::SCHEMA,
        trace: TraceSummary::of(file, &trace),
        profile: "8b-h200",
        fit: None,
        seed: 1,
        cells: [reports(Policy::Warm), reports(Policy::Random)].concat(),
    }
}

#[test]
fn every_fleet_has_charts_and_every_cell_has_engines_and_a_row() {
    let page = html::page(&report("trace.jsonl"));
    assert_eq!(page.matches("<h2>2 engines</h2>").count(), 1);
    for (title, charts) in [
        ("TTFT, mean", 2),
        ("TTFT, p99", 2),
        ("Block hits", 2),
        ("Prefill imbalance", 2),
        ("ITL", 2),
    ] {
        assert_eq!(
            page.matches(&format!("<figcaption>{title}")).count(),
            charts,
            "{title}"
        );
    }
    assert_eq!(page.matches("<figcaption>warm, speed 1.000, ").count(), 2);
    assert_eq!(page.matches("<tr>").count(), 1 + 4);
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
}

#[test]
fn the_page_fetches_nothing_and_runs_no_script() {
    let page = html::page(&report("trace.jsonl"));
    for forbidden in [
        "http://", "https://", "<script", "<link", "<img", "src=", "url(", "@import",
    ] {
        assert!(!page.contains(forbidden), "{forbidden}");
    }
    assert!(page.contains("default-src 'none'"));
}

#[test]
#[contract("S70")]
fn the_name_of_a_trace_is_escaped() {
    let page = html::page(&report("</title><script>alert(1)</script>&\"'"));
    assert!(page.contains("&lt;/title&gt;&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;&#39;"));
    assert!(!page.contains("<script"));
}

#[test]
fn the_same_report_gives_the_same_bytes() {
    assert_eq!(html::page(&report("a")), html::page(&report("a")));
}
