#include <mend/trace/chart.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "core/scratch.hpp"

using mend::trace::Chart;
using mend::trace::EventKind;
using Points = std::vector<Chart::Point>;

namespace {

//! Throws where the text is not well-formed XML of the kind that a chart is: elements, attributes
//! in double quotes, text, the five entities. Returns all text between tags, a line per piece.
std::string check_xml(std::string_view xml) {
  auto fail = [&](const std::string& what) {
    throw std::runtime_error{what + " at: " + std::string{xml.substr(0, 60)}};
  };
  std::string texts;
  std::vector<std::string> open;
  auto entity = [&] {
    for (std::string_view e : {"&amp;", "&lt;", "&gt;", "&quot;"})
      if (xml.substr(0, e.size()) == e) return;
    fail("an unknown entity");
  };
  auto name = [&] {
    std::size_t n =
        xml.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-");
    std::string found{xml.substr(0, n)};
    if (found.empty()) fail("a missing name");
    xml.remove_prefix(found.size());
    return found;
  };
  auto skip = [&] { xml.remove_prefix(std::min(xml.find_first_not_of(" \n"), xml.size())); };
  bool root = false;
  while (!xml.empty()) {
    if (xml[0] != '<') {
      if (open.empty() && xml[0] != '\n') fail("text outside of the root");
      if (xml[0] == '&') entity();
      if (static_cast<unsigned char>(xml[0]) < 0x20 && xml[0] != '\n') fail("a control character");
      texts += xml[0];
      xml.remove_prefix(1);
      continue;
    }
    xml.remove_prefix(1);
    texts += '\n';
    if (xml.substr(0, 1) == "/") {
      xml.remove_prefix(1);
      if (open.empty() || name() != open.back()) fail("a wrong closing tag");
      open.pop_back();
      if (xml.substr(0, 1) != ">") fail("an open closing tag");
      xml.remove_prefix(1);
      continue;
    }
    if (open.empty() && root) fail("a second root");
    root = true;
    open.push_back(name());
    for (skip(); xml[0] != '>' && xml[0] != '/'; skip()) {
      name();
      if (xml.substr(0, 2) != "=\"") fail("an attribute without a value");
      xml.remove_prefix(2);
      std::size_t end = xml.find('"');
      if (end == std::string_view::npos) fail("an attribute without an end");
      if (xml.substr(0, end).find('<') != std::string_view::npos) fail("markup in an attribute");
      if (xml.substr(0, end).find("nan") != std::string_view::npos ||
          xml.substr(0, end).find("inf") != std::string_view::npos)
        fail("not a number");
      xml.remove_prefix(end + 1);
    }
    if (xml[0] == '/') {
      open.pop_back();
      xml.remove_prefix(1);
    }
    if (xml.substr(0, 1) != ">") fail("an open tag");
    xml.remove_prefix(1);
  }
  if (!open.empty() || !root) fail("an element without an end");
  return texts;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

Points line(std::size_t n) {
  Points points;
  for (std::size_t i = 0; i < n; ++i) points.push_back({double(i), 1.0 / double(i + 1)});
  return points;
}

bool has_line(const std::string& texts, const std::string& text) {
  return texts.find("\n" + text + "\n") != std::string::npos;
}

//! y in pixels of every point of the first curve.
std::vector<double> heights(const std::string& svg) {
  std::vector<double> found;
  std::size_t at = svg.find("<path d=\""), end = svg.find('"', at + 9);
  for (; at < end; ++at)
    if (svg[at] == ' ' && (std::isdigit(svg[at + 1]) || svg[at + 1] == '-'))
      found.push_back(std::atof(svg.c_str() + at + 1));
  return found;
}

}  // namespace

TEST_CASE("a chart has its title, labels, legend, ticks, curves and marks") {
  std::string svg = Chart{"A run", "step", "loss"}
                        .series("train", line(1000))
                        .series("test", line(10))
                        .mark(300, "rank 1 killed")
                        .mark(310, "rank 1 back", EventKind::replacement)
                        .svg();
  std::string texts;
  REQUIRE_NOTHROW(texts = check_xml(svg));
  for (std::string text : {"A run", "step", "loss", "train", "test", "rank 1 killed", "rank 1 back",
                           "0", "200", "1000", "0.2", "1.0"})
    CHECK_MESSAGE(has_line(texts, text), text);
  CHECK(count(svg, "<path") == 2);
  CHECK(count(svg, "stroke-dasharray") == 2);
  CHECK(svg.find("fill=\"#ffffff\"") != std::string::npos);
}

TEST_CASE("names of any bytes stay well-formed") {
  std::string all;
  for (int c = 0; c < 256; ++c) all += static_cast<char>(c);
  all += "\xef\xbf\xbf<&>\"'\xc3\xa9";
  std::string svg = Chart{all, all, all}.series(all, line(3)).mark(1, all).svg();
  CHECK_NOTHROW(check_xml(svg));
  CHECK(mend::is_utf8(svg));
  CHECK(svg.find("\xef\xbf\xbf") == std::string::npos);  // U+FFFF, which XML cannot hold
  CHECK(svg.find("&lt;&amp;&gt;&quot;'\xc3\xa9") != std::string::npos);
}

TEST_CASE("ticks are numbers that people count in") {
  auto ticks = [](double low, double high) {
    return check_xml(Chart{""}.series("s", Points{{0, low}, {1, high}}).svg());
  };
  std::string texts = ticks(0, 2.3);
  for (std::string t : {"0", "0.5", "1.0", "1.5", "2.0", "2.5"})
    CHECK_MESSAGE(has_line(texts, t), t);
  texts = ticks(0.0312, 0.0338);
  for (std::string t : {"0.0310", "0.0315", "0.0340"}) CHECK_MESSAGE(has_line(texts, t), t);
  texts = ticks(-150, 950);
  for (std::string t : {"-200", "0", "200", "1000"}) CHECK_MESSAGE(has_line(texts, t), t);
  texts = ticks(1e-12, 4e-12);
  CHECK(has_line(texts, "1e-12"));
  texts = ticks(0, 3e9);
  CHECK(has_line(texts, "1e+09"));
}

TEST_CASE("no points, one point, equal points, huge and non-finite values are drawn") {
  const double big = 1e299, none = NAN;
  for (const Points& points :
       {Points{}, Points{{5, 7}}, Points{{0, 0}}, Points{{1, 2}, {1, 2}}, Points{{0, 3}, {9, 3}},
        Points{{0, none}, {1, 1}, {2, INFINITY}, {3, 2}, {none, 4}}, Points{{0, -big}, {1, big}},
        Points{{-big, 0}, {big, 5e-324}}, Points{{0, 1e308}, {1, 2}},
        Points{{1e9, 1}, {1e9 + 1, 1 + 1e-12}}}) {
    std::string svg = Chart{"edge"}.series("s", points).mark(INFINITY, "never").svg();
    CHECK_NOTHROW(check_xml(svg));
    for (double y : heights(svg)) CHECK((y >= 0 && y <= 540));
  }
  CHECK_NOTHROW(check_xml(Chart{"empty"}.svg()));
  CHECK_NOTHROW(check_xml(Chart{"marks alone"}.mark(3, "here").svg()));
}

TEST_CASE("a value that is not finite leaves a gap") {
  std::string svg = Chart{""}.series("s", Points{{0, 1}, {1, 2}, {2, NAN}, {3, 2}, {4, 1}}).svg();
  std::size_t at = svg.find("<path d=\"");
  std::string path = svg.substr(at, svg.find('"', at + 9) - at);
  CHECK(count(path, "M") == 2);
  CHECK(count(path, "L") == 2);
}

TEST_CASE("a million points make a small file that still shows every extreme") {
  Points points;
  std::mt19937 random{1};
  for (int i = 0; i < 1'000'000; ++i)
    points.push_back({double(i), 1 + double(random() % 1000) / 1e6});
  points[654'321].y = 9;
  points[123'456].y = -9;
  std::string svg = Chart{"long"}.series("s", points).svg();
  CHECK(svg.size() < 200'000);
  std::vector<double> drawn = heights(svg);
  std::string texts = check_xml(svg);
  CHECK(has_line(texts, "10"));
  // -9 and 9 on an axis from -10 to 10 over 360 pixels: 18 from either end.
  CHECK(*std::min_element(drawn.begin(), drawn.end()) == doctest::Approx(125 + 18));
  CHECK(*std::max_element(drawn.begin(), drawn.end()) == doctest::Approx(485 - 18));
}

TEST_CASE("labels of marks do not cover one another; one without room is still in the picture") {
  Chart chart{"crowd"};
  chart.series("s", line(1000));
  for (int i = 0; i < 50; ++i) chart.mark(500 + i, "rank 1 killed");
  chart.mark(999, "at the very right end of the picture");
  std::string svg = chart.svg();
  CHECK_NOTHROW(check_xml(svg));
  CHECK(count(svg, "<title>rank 1 killed</title>") == 50);
  CHECK(count(svg, ">rank 1 killed</text>") >= 3);
  CHECK(count(svg, ">rank 1 killed</text>") <= 6);
  CHECK(svg.find("text-anchor=\"end\">at the very right end") != std::string::npos);
}

TEST_CASE("the file appears whole; a path that cannot be written is an error") {
  mend_test::Scratch scratch;
  mend::PosixFileSystem files;
  Chart chart{"file"};
  chart.series("s", line(5));
  chart.write(scratch / "c.svg");
  chart.write(scratch / "c.svg");
  CHECK(files.open(scratch / "c.svg").size() == chart.svg().size());
  CHECK(files.list(scratch.path) == std::vector<std::string>{"c.svg"});
  try {
    chart.write(scratch / "absent/c.svg");
    FAIL("written into a directory that does not exist");
  } catch (const mend::FileError& e) {
    CHECK(e.code() == ENOENT);
    CHECK(e.path() == scratch / "absent/c.svg");
  }
}
