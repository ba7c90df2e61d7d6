#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mend/core/atomic_file.hpp"
#include "mend/core/file_system.hpp"
#include "mend/core/text.hpp"
#include "mend/trace/event.hpp"

namespace mend::trace {

//! Curves over steps with marks where something happened, as an SVG picture on white ground that
//! needs no other tool. Long curves are thinned to what the picture can show; a value that is not
//! finite leaves a gap.
class Chart {
 public:
  struct Point {
    double x, y;
  };

  explicit Chart(std::string title, std::string x_label = "step", std::string y_label = "loss")
      : title_{std::move(title)}, x_label_{std::move(x_label)}, y_label_{std::move(y_label)} {}

  Chart& series(std::string_view name, std::span<const Point> points) {
    series_.push_back({std::string{name}, {points.begin(), points.end()}});
    return *this;
  }
  //! A vertical line at x; the kind gives its colour.
  Chart& mark(double x, std::string_view label, EventKind kind = EventKind::death) {
    if (std::isfinite(x)) marks_.push_back({x, std::string{label}, kind});
    return *this;
  }

  [[nodiscard]] std::string svg() const {
    Axis x = axis(&Point::x, left, width - right), y = axis(&Point::y, height - bottom, top);
    std::string out = "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(width) +
                      " " + number(height) + "\" font-family=\"sans-serif\" font-size=\"13\">\n" +
                      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n" +
                      text(left, 28, title_, "font-size=\"18\" font-weight=\"bold\"") +
                      frame(x, y) + legend();
    for (std::size_t i = 0; i < series_.size(); ++i) out += curve(series_[i], color(i), x, y);
    return out + markers(x) + "</svg>\n";
  }
  //! The file appears whole or not at all. Throws FileError.
  void write(const std::string& path) const {
    PosixFileSystem files;
    AtomicFile file{files, path};
    file.write(std::string_view{svg()});
    file.publish();
  }

 private:
  struct Series {
    std::string name;
    std::vector<Point> points;
  };
  struct Mark {
    double x;
    std::string label;
    EventKind kind;
  };

  // In pixels. The strip between legend and plot holds the labels of marks, in rows.
  static constexpr double width = 960, height = 540, left = 70, right = 25, bottom = 55;
  static constexpr double legend_y = 50, label_y = 74, row_height = 16, top = 125;
  static constexpr std::size_t rows = 3;
  static constexpr double character = 7;  // a generous mean width at this font size

  //! A range of values, and the pixels that its ends are drawn at.
  struct Axis {
    double low, high, step, pixel_low, pixel_high;
    [[nodiscard]] double at(double value) const {
      return pixel_low + (value - low) / (high - low) * (pixel_high - pixel_low);
    }
  };

  [[nodiscard]] Axis axis(double Point::*which, double pixel_low, double pixel_high) const {
    double low = HUGE_VAL, high = -HUGE_VAL;
    auto cover = [&](double value) { low = std::min(low, value), high = std::max(high, value); };
    for (const Series& s : series_)
      for (const Point& p : s.points)
        if (drawable(p)) cover(p.*which);
    if (which == &Point::x)
      for (const Mark& m : marks_) cover(m.x);
    if (low > high) low = 0, high = 1;
    double size = std::max(std::abs(low), std::abs(high));
    if (high - low <= std::max(size * 1e-9, 1e-300)) {  // one value: a range around it
      double around = size < 1e-290 ? 1 : size / 10;
      low -= around, high += around;
    }
    // The steps that people count in: 1, 2 or 5 times a power of ten.
    double raw = high / 6 - low / 6, power = std::pow(10, std::floor(std::log10(raw)));
    double step = power * (raw <= power ? 1 : raw <= 2 * power ? 2 : raw <= 5 * power ? 5 : 10);
    return {std::floor(low / step) * step, std::ceil(high / step) * step, step, pixel_low,
            pixel_high};
  }

  //! Far from the ends of what a double holds, so that the arithmetic here stays finite.
  static bool drawable(const Point& p) {
    return std::abs(p.x) < 1e300 && std::abs(p.y) < 1e300;  // false for NaN
  }

  [[nodiscard]] std::string frame(const Axis& x, const Axis& y) const {
    std::string out;
    for (int i = 0; i <= ticks(y); ++i) {
      double value = y.low + i * y.step, at = y.at(value);
      out += line(left, at, width - right, at, "#e0e0e0") +
             text(left - 8, at + 4, tick(value, y.step), "text-anchor=\"end\"");
    }
    for (int i = 0; i <= ticks(x); ++i) {
      double value = x.low + i * x.step, at = x.at(value);
      out += line(at, height - bottom, at, height - bottom + 5, "#404040") +
             text(at, height - bottom + 20, tick(value, x.step), "text-anchor=\"middle\"");
    }
    out += line(left, height - bottom, width - right, height - bottom, "#404040") +
           line(left, top, left, height - bottom, "#404040") +
           text((left + width - right) / 2, height - 14, x_label_, "text-anchor=\"middle\"");
    double middle = (top + height - bottom) / 2;
    return out + text(18, middle, y_label_,
                      "text-anchor=\"middle\" transform=\"rotate(-90 18 " + number(middle) + ")\"");
  }

  [[nodiscard]] std::string legend() const {
    std::string out;
    double at = left;
    for (std::size_t i = 0; i < series_.size(); ++i) {
      out += line(at, legend_y - 4, at + 22, legend_y - 4, color(i), "stroke-width=\"3\"") +
             text(at + 28, legend_y, series_[i].name);
      at += 50 + character * static_cast<double>(series_[i].name.size());
    }
    return out;
  }

  //! The first, lowest, highest and last point of every pixel column, joined.
  static std::string curve(const Series& s, std::string_view stroke, const Axis& x, const Axis& y) {
    std::string out, path;
    bool pen_down = false;
    auto draw_to = [&](const Point& p) {
      path += (pen_down ? "L" : "M") + number(x.at(p.x)) + " " + number(y.at(p.y));
      if (!pen_down) path += "h0";  // a point alone is drawn as a dot
      pen_down = true;
    };
    const std::vector<Point>& p = s.points;
    for (std::size_t i = 0; i < p.size();) {
      if (!drawable(p[i])) {
        pen_down = false;
        ++i;
        continue;
      }
      std::size_t end = i, lowest = i, highest = i;
      double column = std::floor(x.at(p[i].x));
      for (; end < p.size() && drawable(p[end]) && std::floor(x.at(p[end].x)) == column; ++end) {
        if (p[end].y < p[lowest].y) lowest = end;
        if (p[end].y > p[highest].y) highest = end;
      }
      std::array<std::size_t, 4> kept{i, std::min(lowest, highest), std::max(lowest, highest),
                                      end - 1};
      for (std::size_t k = 0; k < kept.size(); ++k)
        if (k == 0 || kept[k] != kept[k - 1]) draw_to(p[kept[k]]);
      i = end;
    }
    return "<path d=\"" + path + "\" fill=\"none\" stroke=\"" + std::string{stroke} +
           "\" stroke-width=\"1.6\" stroke-linejoin=\"round\" stroke-linecap=\"round\"/>\n";
  }

  //! Labels fill the first row in which they do not touch the one before; a label that finds none
  //! is still told when the pointer rests on its line.
  [[nodiscard]] std::string markers(const Axis& x) const {
    std::vector<Mark> marks = marks_;
    std::stable_sort(marks.begin(), marks.end(), [](auto& a, auto& b) { return a.x < b.x; });
    std::array<double, rows> free_from{};
    std::string out;
    for (const Mark& m : marks) {
      double at = x.at(m.x), size = character * static_cast<double>(m.label.size()) + 8;
      // Near the right edge a label stands left of its line.
      bool before = at + size > width && at - size > 0;
      double start = before ? at - size : at;
      std::size_t row = 0;
      while (row < rows && start < free_from[row]) ++row;
      double y = row < rows ? label_y + row_height * static_cast<double>(row) : top;
      out += "<g><title>" + escaped(m.label) + "</title>\n" +
             line(at, y, at, height - bottom, color(m.kind), "stroke-dasharray=\"4 3\"");
      if (row < rows) {
        free_from[row] = start + size;
        out += text(before ? at - 4 : at + 4, y + 10, m.label,
                    "text-anchor=\"" + std::string{before ? "end" : "start"} + "\"", color(m.kind));
      }
      out += "</g>\n";
    }
    return out;
  }

  // Colours that stay apart for colour-blind readers (Okabe and Ito) and dark enough on white.
  static std::string_view color(std::size_t series) {
    constexpr std::array<std::string_view, 6> colors{"#0072b2", "#d55e00", "#009e73",
                                                     "#cc79a7", "#7a5195", "#56606b"};
    return colors[series % colors.size()];
  }
  static std::string_view color(EventKind kind) {
    switch (kind) {
      case EventKind::death:
      case EventKind::stop: return "#b00020";
      case EventKind::replacement:
      case EventKind::transfer: return "#00704a";
      case EventKind::recovery:
      case EventKind::stall: return "#a05a00";
      default: return "#505050";
    }
  }

  static int ticks(const Axis& a) {
    return static_cast<int>(std::lround((a.high - a.low) / a.step));
  }
  //! With as many decimals as tell one step from the next.
  static std::string tick(double value, double step) {
    if (std::abs(value) < step / 2) return "0";
    int digit = static_cast<int>(std::floor(std::log10(step) + 1e-9));
    bool plain = std::abs(value) < 1e7 && digit >= -5;
    int precision = plain ? std::max(0, -digit)
                          : static_cast<int>(std::log10(std::abs(value) / step) + 1e-9) + 2;
    char digits[64];
    auto end =
        std::to_chars(digits, digits + sizeof digits, value,
                      plain ? std::chars_format::fixed : std::chars_format::general, precision);
    return {digits, end.ptr};
  }
  static std::string number(double value) {
    char digits[400];
    auto end = std::to_chars(digits, digits + sizeof digits, value, std::chars_format::fixed, 1);
    return {digits, end.ptr};
  }
  static std::string line(double x1, double y1, double x2, double y2, std::string_view stroke,
                          std::string_view more = "") {
    return "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) +
           "\" y2=\"" + number(y2) + "\" stroke=\"" + std::string{stroke} + "\" " +
           std::string{more} + "/>\n";
  }
  static std::string text(double x, double y, std::string_view content, std::string_view more = "",
                          std::string_view fill = "#202020") {
    return "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" fill=\"" + std::string{fill} +
           "\" " + std::string{more} + ">" + escaped(content) + "</text>\n";
  }
  //! For XML: markup becomes entities; what XML 1.0 cannot hold becomes U+FFFD.
  static std::string escaped(std::string_view content) {
    std::string out;
    while (!content.empty()) {
      std::size_t n = utf8_sequence(content);
      std::string_view c = content.substr(0, std::max<std::size_t>(n, 1));
      if (c == "&")
        out += "&amp;";
      else if (c == "<")
        out += "&lt;";
      else if (c == ">")
        out += "&gt;";
      else if (c == "\"")
        out += "&quot;";
      else if (n == 0 || (n == 1 && static_cast<unsigned char>(c[0]) < 0x20) ||
               c == "\xef\xbf\xbe" || c == "\xef\xbf\xbf")
        out += replacement_character;
      else
        out += c;
      content.remove_prefix(c.size());
    }
    return out;
  }

  std::string title_, x_label_, y_label_;
  std::vector<Series> series_;
  std::vector<Mark> marks_;
};

}  // namespace mend::trace
