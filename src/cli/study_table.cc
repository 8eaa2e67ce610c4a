#include "cli/study_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace heirloom::cli {
namespace {

/// Three significant digits, more only where the number has them anyway: 0.0123, 4.57, 81.2, 1403.
std::string digits(double value) {
  const int decimals = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : value >= 0.1 ? 3 : 4;
  return fmt::format("{:.{}f}", value, decimals);
}

std::string spread(const tools::StudyFigure& figure) {
  const std::string median = digits(figure.median) + " " + figure.unit;
  return figure.samples > 1 ? fmt::format("{} ({}-{})", median, digits(figure.min), digits(figure.max)) : median;
}

}  // namespace

std::string study_table(const tools::StudyReport& report) {
  std::string text = report.cpu + "\n";
  if (!report.gpu.empty()) text += report.gpu + "\n";
  for (const tools::StudyPart& part : report.parts) {
    text += fmt::format("\n{}: {}\n", part.name, part.title);
    std::size_t width = 0;
    for (const tools::StudyRow& row : part.rows) width = std::max(width, row.what.size());
    for (const tools::StudyRow& row : part.rows) {
      const std::string times = row.times_better > 0 ? fmt::format("{:.2f} x", row.times_better) : "";
      std::string line = fmt::format("  {:<{}}  {:<32} {:>8}  {}", row.what, width, spread(row.figure), times, row.note);
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
    for (const std::string& sentence : part.skipped) text += fmt::format("  skipped: {}\n", sentence);
    text += fmt::format("  beside it: {}\n", part.papers);
  }
  return text + "\n" + tools::kStudySources + "\n";
}

Json study_json(const tools::StudyReport& report) {
  Json parts = Json::array();
  for (const tools::StudyPart& part : report.parts) {
    Json rows = Json::array();
    for (const tools::StudyRow& row : part.rows) {
      rows.push_back({{"what", row.what}, {"unit", row.figure.unit}, {"min", row.figure.min}, {"median", row.figure.median},
                      {"max", row.figure.max}, {"samples", row.figure.samples}, {"times_better", row.times_better}, {"note", row.note}});
    }
    parts.push_back({{"name", part.name}, {"title", part.title}, {"rows", rows}, {"skipped", part.skipped}, {"papers", part.papers}});
  }
  return {{"machine", {{"cpu", report.cpu}, {"gpu", report.gpu}}}, {"parts", parts}, {"sources", tools::kStudySources}};
}

}  // namespace heirloom::cli
