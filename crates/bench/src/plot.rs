//! Plots as SVG, for the page: bars of loads, curves over time and by depth.

use plotters::prelude::*;

use crate::log::Point;

/// Size of a plot, in pixels of its own.
const WIDTH: u32 = 860;
const HEIGHT: u32 = 320;
/// Height of a bar and of what is around bars.
const BAR: u32 = 26;
const FRAME: u32 = 90;
/// Room for the names of loads.
const NAMES: u32 = 270;
/// Colours that people with weak eyes for red or green tell apart (Okabe and Ito 2008).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(230, 159, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(213, 94, 0),
];
const INK: RGBColor = RGBColor(60, 60, 60);

/// A bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Its name.
    pub name: String,
    /// How long it is.
    pub value: f64,
    /// Half of the interval that is sure.
    pub error: Option<f64>,
    /// The expected value.
    pub planned: Option<f64>,
}

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Its name.
    pub name: String,
    /// Its points.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Over time.
    pub fn over_time(name: impl Into<String>, points: &[Point]) -> Self {
        Curve {
            name: name.into(),
            points: points
                .iter()
                .map(|point| (point.at_seconds, point.iops))
                .collect(),
        }
    }
}

/// Units of the axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axes<'a> {
    /// The horizontal one.
    pub x: &'a str,
    /// The vertical one.
    pub y: &'a str,
    /// Twice as much is as far everywhere, along the horizontal one.
    pub is_log_x: bool,
}

/// Why nothing was drawn: in a string, that cannot be but for numbers that are none.
type Drawn = Result<(), Box<dyn std::error::Error>>;

/// Draws; nothing where that fails, since a report is good without.
fn drawn(width: u32, height: u32, draw: impl FnOnce(&Area<'_>) -> Drawn) -> String {
    let mut svg = String::new();
    let is_drawn = {
        let area = SVGBackend::with_string(&mut svg, (width, height)).into_drawing_area();
        let is_drawn = draw(&area).is_ok() && area.present().is_ok();
        drop(area);
        is_drawn
    };
    match is_drawn {
        true => scaled(&svg, width, height),
        false => String::new(),
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// With a box to be scaled in, instead of a fixed size.
fn scaled(svg: &str, width: u32, height: u32) -> String {
    let fixed = format!("<svg width=\"{width}\" height=\"{height}\"");
    svg.replacen(&fixed, "<svg role=\"img\"", 1)
}

/// A number as an axis has it: `12k`, `1.5M`.
pub fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let digits = match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => 0,
        size if size >= 10.0 => 1,
        _ => 2,
    };
    format!("{value:.digits$}{unit}")
}

/// The end of an axis: a little beyond all values, and never nothing.
fn end(values: impl Iterator<Item = f64>) -> f64 {
    let most = values.filter(|value| value.is_finite()).fold(0.0, f64::max);
    match most > 0.0 {
        true => most * 1.08,
        false => 1.0,
    }
}

/// Bars below each other, with marks where they were expected to end.
pub fn bars(bars: &[Bar], unit: &str) -> String {
    if bars.is_empty() {
        return String::new();
    }
    let count = bars.len();
    let all = bars.iter().flat_map(|bar| {
        [
            bar.value + bar.error.unwrap_or(0.0),
            bar.planned.unwrap_or(0.0),
        ]
    });
    let most = end(all);
    let height = BAR * count as u32 + FRAME;
    drawn(WIDTH, height, |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(10)
            .x_label_area_size(46)
            .y_label_area_size(NAMES)
            .build_cartesian_2d(0.0..most, 0.0..count as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .y_labels(0)
            .x_desc(unit)
            .x_label_formatter(&|x| short(*x))
            .label_style(("sans-serif", 13, &INK))
            .draw()?;
        for (row, bar) in bars.iter().enumerate() {
            // The first one is at the top.
            let centre = count as f64 - 0.5 - row as f64;
            let [top, bottom] = [centre + 0.36, centre - 0.36];
            let shape = Rectangle::new([(0.0, bottom), (bar.value, top)], COLOURS[0].filled());
            chart.draw_series([shape])?;
            if let Some(error) = bar.error {
                let ends = [bar.value - error, bar.value + error].map(|end| (end, centre));
                chart.draw_series([PathElement::new(ends.to_vec(), INK.stroke_width(2))])?;
            }
            if let Some(planned) = bar.planned {
                let line = vec![(planned, centre - 0.46), (planned, centre + 0.46)];
                let style = COLOURS[5].stroke_width(3);
                chart.draw_series([PathElement::new(line, style)])?;
            }
            // The name, beside the axis.
            let (_, y) = chart.backend_coord(&(0.0, centre));
            let style = TextStyle::from(("sans-serif", 13).into_font())
                .color(&INK)
                .pos(plotters::style::text_anchor::Pos::new(
                    plotters::style::text_anchor::HPos::Right,
                    plotters::style::text_anchor::VPos::Center,
                ));
            area.draw_text(&bar.name, &style, (NAMES as i32, y))?;
        }
        Ok(())
    })
}

/// Curves in one picture, with their names if there are several.
pub fn curves(curves: &[Curve], axes: Axes<'_>) -> String {
    let points = || curves.iter().flat_map(|curve| curve.points.iter().copied());
    if points().count() == 0 {
        return String::new();
    }
    let most = end(points().map(|(_, y)| y));
    let last = end(points().map(|(x, _)| x));
    let first = points().map(|(x, _)| x).fold(f64::MAX, f64::min);
    drawn(WIDTH, HEIGHT, |area| match axes.is_log_x && first > 0.0 {
        true => {
            let range = (first..last.max(first * 1.01)).log_scale().base(2.0);
            on(area, range, most, curves, axes)
        }
        false => on(area, 0.0..last, most, curves, axes),
    })
}

/// Draws curves along an axis.
fn on<X>(area: &Area<'_>, range: X, most: f64, curves: &[Curve], axes: Axes<'_>) -> Drawn
where
    X: plotters::coord::ranged1d::AsRangedCoord<Value = f64>,
    X::CoordDescType: plotters::coord::ranged1d::ValueFormatter<f64>,
{
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(46)
        .y_label_area_size(70)
        .build_cartesian_2d(range, 0.0..most)?;
    chart
        .configure_mesh()
        .x_desc(axes.x)
        .y_desc(axes.y)
        .x_label_formatter(&|x| short(*x))
        .y_label_formatter(&|y| short(*y))
        .label_style(("sans-serif", 13, &INK))
        .light_line_style(TRANSPARENT)
        .draw()?;
    for (number, curve) in curves.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let line = LineSeries::new(curve.points.iter().copied(), colour.stroke_width(2));
        chart
            .draw_series(line)?
            .label(curve.name.clone())
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
            });
        let dots = curve.points.iter().filter(|_| curve.points.len() <= 40);
        chart.draw_series(dots.map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    if curves.len() > 1 {
        chart
            .configure_series_labels()
            .background_style(WHITE.mix(0.85))
            .border_style(INK.mix(0.3))
            .label_font(("sans-serif", 13, &INK))
            .position(SeriesLabelPosition::LowerRight)
            .draw()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const AXES: Axes<'static> = Axes {
        x: "seconds",
        y: "operations/s",
        is_log_x: false,
    };

    fn bar(name: &str, value: f64) -> Bar {
        Bar {
            name: name.into(),
            value,
            error: Some(value / 10.0),
            planned: Some(value * 2.0),
        }
    }

    #[test]
    fn bars_have_their_names_and_marks() {
        let svg = bars(
            &[bar("random <reads>", 120.0), bar("writes", 80.0)],
            "operations/s",
        );
        assert!(svg.starts_with("<svg role=\"img\""), "{svg}");
        assert!(svg.contains("viewBox=\"0 0 860 142\""), "{svg}");
        assert!(
            svg.contains("random &lt;reads&gt;") && svg.contains("writes"),
            "{svg}"
        );
        // Two bars, and two marks of what was planned.
        assert_eq!(svg.matches("#0072B2").count(), 2, "{svg}");
        assert_eq!(svg.matches("#D55E00").count(), 2, "{svg}");
        assert_eq!(bars(&[], "x"), "");
    }

    #[test]
    fn curves_are_drawn_also_of_one_point_and_of_nothing() {
        let curve = |points: &[(f64, f64)]| Curve {
            name: "reads".into(),
            points: points.to_vec(),
        };
        let svg = curves(
            &[curve(&[(1.0, 5.0), (2.0, 6.0)]), curve(&[(1.0, 0.0)])],
            AXES,
        );
        assert!(svg.contains("<polyline") && svg.contains("reads"), "{svg}");
        assert_ne!(curves(&[curve(&[(1.0, 0.0)])], AXES), "");
        let by_depth = Axes {
            is_log_x: true,
            ..AXES
        };
        assert_ne!(curves(&[curve(&[(1.0, 3.0), (64.0, 9.0)])], by_depth), "");
        assert_ne!(curves(&[curve(&[(4.0, 3.0)])], by_depth), "");
        assert_eq!(curves(&[], AXES), "");
        assert_eq!(curves(&[curve(&[])], AXES), "");
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let told = [0.0, 0.25, 12.5, 950.0, 9_500.0, 12_000.0, 1_500_000.0].map(short);
        assert_eq!(told, ["0", "0.25", "12.5", "950", "9500", "12k", "1.50M"]);
    }
}
