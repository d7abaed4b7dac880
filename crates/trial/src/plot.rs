//! Operations a second over time, as an SVG picture.

use std::fmt::Write;

use crate::report::{Outcome, Told, duration};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 380.0;
/// Around what is drawn, for words: left, right, above, below.
const LEFT: f64 = 70.0;
const RIGHT: f64 = 20.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 44.0;
/// Lines of servers, in their order. They differ in lightness too.
const COLOURS: [&str; 4] = ["#8a8f98", "#c2571a", "#14539a", "#3f7d20"];
/// Lines across the picture, at most.
const GRID: f64 = 6.0;

/// A step of a scale with about as many as [`GRID`] of them: 1, 2 or 5 times a power of ten.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / GRID).log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0];
    let fits = |times: &&f64| most / (power * **times) <= GRID;
    power * steps.iter().find(fits).unwrap_or(&10.0)
}

/// Hours or minutes of a scale of time, in seconds.
fn time_step(most: f64) -> f64 {
    let steps = [10.0, 60.0, 300.0, 600.0, 1800.0, 3600.0, 6.0 * 3600.0];
    let fits = |step: &&f64| most / **step <= 2.0 * GRID;
    *steps.iter().find(fits).unwrap_or(&86_400.0)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}

impl Told {
    /// The first load that was told in stretches, as an SVG picture: operations a second over time,
    /// a line for each server, and what was published. `None`: there is no such load.
    pub fn svg(&self) -> Option<String> {
        let mut steps = self.servers.iter().flat_map(|report| &report.steps);
        let name = &steps.find(|step| step.points.len() > 1)?.name;
        let lines: Vec<_> = self.of_step(name).collect();
        Some(picture(&self.title, &lines))
    }
}

/// Lines of a load's stretches by the names of their servers, and circles for what was published.
fn picture(title: &str, lines: &[(&str, &Outcome)]) -> String {
    let points = || lines.iter().flat_map(|(_, step)| &step.points);
    let published = || lines.iter().flat_map(|(_, step)| &step.published);
    let seconds = points()
        .map(|point| point.at.as_secs_f64())
        .fold(1.0, f64::max);
    let iops = points().map(|point| point.iops);
    let most = iops
        .chain(published().map(|known| known.iops))
        .fold(1.0, f64::max)
        * 1.05;
    let x = |at: f64| LEFT + at / seconds * (WIDTH - LEFT - RIGHT);
    let y = |iops: f64| HEIGHT - BELOW - iops / most * (HEIGHT - ABOVE - BELOW);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{}: operations a second</text>\n",
        escaped(title)
    );
    // Writing to a string cannot fail.
    let mut line = 0.0;
    while line <= most {
        let (at, right) = (y(line), WIDTH - RIGHT);
        let _ = writeln!(
            out,
            "<path d=\"M{LEFT} {at:.0}H{right}\" stroke=\"#ddd\"/>\
             <text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{line:.0}</text>",
            LEFT - 6.0,
            at + 4.0
        );
        line += step(most);
    }
    let mut time = 0.0;
    while time <= seconds {
        let _ = writeln!(
            out,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"middle\">{}</text>",
            x(time),
            HEIGHT - BELOW + 18.0,
            duration(time)
        );
        time += time_step(seconds);
    }
    for (number, (server, step)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<String> = (step.points.iter())
            .map(|point| format!("{:.1},{:.1}", x(point.at.as_secs_f64()), y(point.iops)))
            .collect();
        let _ = writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            places.join(" ")
        );
        let left = LEFT + 150.0 * number as f64;
        let below = HEIGHT - 8.0;
        let _ = writeln!(
            out,
            "<path d=\"M{left} {:.0}h18\" stroke=\"{colour}\" stroke-width=\"3\"/>\
             <text x=\"{:.0}\" y=\"{below:.0}\">{}</text>",
            below - 4.0,
            left + 24.0,
            escaped(server)
        );
    }
    // It is the same that was published, whatever server is beside it.
    let published =
        (lines.iter().map(|(_, step)| &step.published)).find(|published| !published.is_empty());
    for known in published.into_iter().flatten() {
        let _ = writeln!(
            out,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\" fill=\"none\" stroke=\"#000\" \
             stroke-width=\"1.5\"><title>published: {:.0}</title></circle>",
            x(known.seconds as f64),
            y(known.iops),
            known.iops
        );
    }
    if published.is_some() {
        let left = LEFT + 150.0 * lines.len() as f64;
        let _ = writeln!(
            out,
            "<circle cx=\"{:.0}\" cy=\"{:.0}\" r=\"4\" fill=\"none\" stroke=\"#000\" \
             stroke-width=\"1.5\"/><text x=\"{:.0}\" y=\"{:.0}\">published</text>",
            left + 8.0,
            HEIGHT - 12.0,
            left + 24.0,
            HEIGHT - 8.0
        );
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_few_round_steps() {
        for (most, is) in [
            (25_000.0, 5000.0),
            (2_900.0, 500.0),
            (1.0, 0.2),
            (612.0, 200.0),
        ] {
            assert!(
                (step(most) / is - 1.0).abs() < 1e-9,
                "{most}: {}",
                step(most)
            );
        }
        assert_eq!(time_step(4.0 * 3600.0), 1800.0);
        assert_eq!(time_step(60.0), 10.0);
        assert_eq!(escaped("a<b & c"), "a&lt;b &amp; c");
    }
}
