// The experiments of the papers that heirloom follows, on the machine at hand: each choice that hardware decides (own tile or
// vendor GEMM, sequential or chunked delta rule, 4 or 8 bits, ...) measured both ways within the same minute, at the dimensions
// of the published models with synthetic weights; the needle and its answer come from a bundled model.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "heirloom/engine.h"

namespace heirloom::tools {

struct StudyOptions {
  EngineOptions engine;           // device, threads, cpu_isa, cuda_arch, gemm, vram_bytes, profile
  std::vector<std::string> only;  // names of parts; empty = all
  int repeat = 3;                 // samples of each figure, after one that is not counted
  std::function<void(double fraction, std::string_view what)> progress;
};

/// A figure: median, and the smallest and largest sample.
struct StudyFigure {
  double min = 0, median = 0, max = 0;
  std::string unit;   // "ms" (less is better), "tok/s", "GB/s", "TFLOP/s"
  int samples = 0;
};

struct StudyRow {
  std::string what;
  StudyFigure figure;
  double times_better = 0;  // than the first row of its group; 0 = this is that row, or nothing to compare
  std::string note;
};

struct StudyPart {
  std::string name, title;
  std::vector<StudyRow> rows;
  std::vector<std::string> skipped;  // one sentence each: what was not measured, and why
  std::string papers;                // what the papers report, or what this project set itself
};

struct StudyReport {
  std::string cpu, gpu;  // what ran; gpu is empty without one
  std::vector<StudyPart> parts;
};

/// What the marks in StudyPart::papers stand for.
extern const char* const kStudySources;

/// Names that `only` takes, in the order of the report.
std::vector<std::string> study_part_names();

/// Runs the parts one after another. A part that the device has no memory for is told as skipped. Error{usage} for an unknown
/// name, Error{device} as open_backend.
StudyReport run_study(const StudyOptions& options);

}  // namespace heirloom::tools
