//! Charts as SVG and PNG.
//!
//! What this file keeps true: both files show the same; lines differ in their marks and dashes as well as
//! in their colours, so that a print in black and white can be read; text needs no font of the machine.

use plotters::coord::Shift;
use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};
use std::path::{Path, PathBuf};
use std::sync::Once;

/// Width and height, in pixels.
const SIZE: (u32, u32) = (1_400, 900);
/// A colour for each line in turn: told apart in grey as well.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 0, 0),
    RGBColor(0, 90, 181),
    RGBColor(220, 50, 32),
    RGBColor(26, 133, 88),
    RGBColor(148, 88, 196),
    RGBColor(176, 120, 0),
];

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it shows.
    pub name: String,
    /// Its points, from left to right.
    pub points: Vec<(f64, f64)>,
    /// A model, or a bound: dashed and without marks.
    pub dashed: bool,
    /// Which colour; a model has that of what it is compared with.
    pub colour: usize,
}

/// A chart with a linear x and a logarithmic y axis.
#[derive(Clone, Debug)]
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// The x axis.
    pub x: String,
    /// The y axis.
    pub y: String,
    /// Its lines fall: what they are called stands at the right, where they are low.
    pub falling: bool,
    /// Its lines.
    pub series: Vec<Series>,
}

/// Why there is no chart.
#[derive(Debug, thiserror::Error)]
#[error("cannot draw {path}: {message}")]
pub struct PlotError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    pub message: String,
}

fn fonts() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            let font = epaint_default_fonts::UBUNTU_LIGHT;
            // Text is all that is lost when the font were damaged.
            let _ = register_font("sans-serif", style, font);
        }
    });
}

impl Chart {
    /// Writes `DIR/NAME.svg` and `DIR/NAME.png`; a chart without points is not drawn.
    ///
    /// # Errors
    /// [`PlotError`].
    pub fn save(&self, dir: &Path, name: &str) -> Result<(), PlotError> {
        if self.points().next().is_none() {
            return Ok(());
        }
        fonts();
        let failed = |path: &Path, message: String| PlotError {
            path: path.to_owned(),
            message,
        };
        let svg = dir.join(format!("{name}.svg"));
        let area = SVGBackend::new(&svg, SIZE).into_drawing_area();
        self.draw(&area)
            .and_then(|()| area.present())
            .map_err(|error| failed(&svg, error.to_string()))?;
        let png = dir.join(format!("{name}.png"));
        let area = BitMapBackend::new(&png, SIZE).into_drawing_area();
        self.draw(&area)
            .and_then(|()| area.present())
            .map_err(|error| failed(&png, error.to_string()))
    }

    fn points(&self) -> impl Iterator<Item = &(f64, f64)> {
        self.series.iter().flat_map(|series| &series.points)
    }

    fn draw<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        area.fill(&WHITE)?;
        let most_x = self.points().map(|(x, _)| *x).fold(0.0, f64::max);
        let heights = || self.points().map(|(_, y)| *y).filter(|y| *y > 0.0);
        let (least, most) = (
            heights().fold(f64::INFINITY, f64::min),
            heights().fold(0.0, f64::max),
        );
        let (least, most) = if least < most {
            (least, most)
        } else {
            (0.1, most.max(1.0))
        };
        let chart = ChartBuilder::on(area)
            .caption(&self.title, ("sans-serif", 34))
            .margin(24)
            .x_label_area_size(64)
            .y_label_area_size(110)
            .build_cartesian_2d(
                0.0..(most_x * 1.05).max(f64::MIN_POSITIVE),
                (least / 1.5..most * 1.5).log_scale(),
            )?;
        self.fill(chart)
    }

    fn fill<'a, DB: DrawingBackend + 'a, X, Y>(
        &self,
        mut chart: ChartContext<'a, DB, Cartesian2d<X, Y>>,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>>
    where
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_desc(&self.x)
            .y_desc(&self.y)
            .axis_desc_style(("sans-serif", 26))
            .label_style(("sans-serif", 22))
            .light_line_style(RGBColor(235, 235, 235))
            .bold_line_style(RGBColor(205, 205, 205))
            .draw()?;
        for (at, series) in self.series.iter().enumerate() {
            let colour = COLOURS[series.colour % COLOURS.len()];
            let points: Vec<(f64, f64)> = series
                .points
                .iter()
                .copied()
                .filter(|(_, y)| *y > 0.0)
                .collect();
            if series.dashed {
                chart
                    .draw_series(DashedLineSeries::new(points, 10, 8, colour.stroke_width(2)))?
                    .label(&series.name)
                    .legend(move |(x, y)| {
                        PathElement::new([(x, y), (x + 12, y)], colour.stroke_width(2))
                    });
                continue;
            }
            chart
                .draw_series(LineSeries::new(points.clone(), colour.stroke_width(3)))?
                .label(&series.name)
                .legend(move |(x, y)| {
                    PathElement::new([(x, y), (x + 28, y)], colour.stroke_width(3))
                });
            let marks = points.into_iter();
            match at % 3 {
                0 => chart.draw_series(marks.map(|p| Circle::new(p, 6, colour.filled())))?,
                1 => {
                    chart.draw_series(marks.map(|p| TriangleMarker::new(p, 9, colour.filled())))?
                }
                _ => chart.draw_series(marks.map(|p| Cross::new(p, 7, colour.stroke_width(3))))?,
            };
        }
        chart
            .configure_series_labels()
            .position(if self.falling {
                SeriesLabelPosition::UpperRight
            } else {
                SeriesLabelPosition::UpperLeft
            })
            .background_style(WHITE.mix(0.85))
            .border_style(RGBColor(160, 160, 160))
            .label_font(("sans-serif", 22))
            .draw()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_drawn_twice_and_has_its_text() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../target")
            .join(format!("plot-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let chart = Chart {
            title: "Freeze against W/B".into(),
            x: "W/B".into(),
            y: "ms".into(),
            falling: false,
            series: vec![
                Series {
                    name: "p50".into(),
                    points: vec![(0.0, 1.5), (0.5, 2.0), (2.0, 900.0)],
                    dashed: false,
                    colour: 0,
                },
                Series {
                    name: "model".into(),
                    points: vec![(0.0, 1.0), (2.0, 1_000.0)],
                    dashed: true,
                    colour: 0,
                },
            ],
        };
        chart.save(&dir, "freeze").unwrap();
        let svg = std::fs::read_to_string(dir.join("freeze.svg")).unwrap();
        assert!(svg.contains("Freeze against W/B") && svg.contains("model"));
        let png = std::fs::read(dir.join("freeze.png")).unwrap();
        assert_eq!(&png[..4], b"\x89PNG");
        // The letters of the title are dark pixels: without a font there would be far fewer bytes.
        assert!(png.len() > 10_000, "{} bytes", png.len());
        let nothing = Chart {
            series: Vec::new(),
            ..chart
        };
        nothing.save(&dir, "nothing").unwrap();
        assert!(!dir.join("nothing.svg").exists());
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
