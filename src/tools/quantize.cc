#include "tools/quantize.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "base/thread_pool.h"
#include "format/gguf_writer.h"
#include "format/quant_blocks.h"
#include "model/tensor_export.h"
#include "tools/gguf_keys.h"

namespace heirloom::tools {
namespace {

using model::ExportTensor;
using model::TensorRole;

constexpr std::int64_t kPieceFloats = std::int64_t{4} << 20;  // rows converted at once

bool four_bit(DType type) { return type == DType::q4_0 || type == DType::q4_1 || type == DType::q4_k || type == DType::mxfp4; }

/// What llama.cpp stores instead when a row is not a whole number of blocks.
DType fall_back(DType type, std::int64_t cols) {
  while (cols % dtype_info(type).block_size != 0) {
    switch (type) {
      case DType::q4_k: type = DType::q5_0; break;
      case DType::q5_k: type = DType::q5_1; break;
      case DType::q6_k: type = DType::q8_0; break;
      default: type = DType::f16;
    }
  }
  return type;
}

class Conversion {
 public:
  Conversion(const model::ModelFiles& files, const QuantizeOptions& options)
      : files_(files), options_(options), exporter_(files, options.kept_experts), pool_(options.threads) {
    if (!options.kept_experts.empty()) {
      files_.config.text.num_experts = static_cast<int>(options.kept_experts.front().size());  // what the keys say
    }
    for (const ExportTensor& tensor : exporter_.tensors()) types_.push_back(chosen_type(tensor));
    if (options.type && files.gguf && source_file_type() > 1) {
      bool quantised = false;
      for (const ExportTensor& tensor : exporter_.tensors()) quantised |= is_quantized(tensor.source_type);
      if (quantised) note("the input is quantised already: errors of both steps add up");
    }
    for (const auto& [change, names] : fallbacks_) {
      note(fmt::format("{} instead: the rows of {} tensor{} are not whole blocks (first: {})", change, names.size(),
                       names.size() == 1 ? "" : "s", names.front()));
    }
  }

  QuantizeReport write(const std::filesystem::path& output) {
    const bool vision = files_.config.vision.present;
    const bool separate = vision && !options_.vision_output.empty();
    {
      GgufWriter writer(output);
      write_text_keys(files_, options_.type ? gguf_file_type(*options_.type) : source_file_type(), writer);
      for (const auto& [key, value] : options_.provenance) writer.set(key, std::string_view(value));
      const bool inside = vision && !separate && !options_.text_only;
      if (inside) write_vision_keys(files_, false, writer);
      write_tensors(writer, [&](const ExportTensor& tensor) { return !tensor.vision || inside; });
    }
    report_.output_bytes = std::filesystem::file_size(output);
    if (separate) {
      GgufWriter writer(options_.vision_output);
      write_vision_keys(files_, true, writer);
      write_tensors(writer, [](const ExportTensor& tensor) { return tensor.vision; });
    }
    return std::move(report_);
  }

 private:
  void note(std::string text) { report_.notes.push_back(std::move(text)); }

  /// general.file_type of the input: its own key, or the type of its first large matrix.
  std::uint32_t source_file_type() const {
    if (files_.gguf) {
      if (const auto own = files_.gguf->metadata().find_u64("general.file_type")) return static_cast<std::uint32_t>(*own);
    }
    for (const ExportTensor& tensor : exporter_.tensors()) {
      if (tensor.role == TensorRole::linear && !tensor.vision) return gguf_file_type(tensor.source_type);
    }
    return gguf_file_type(DType::f32);
  }

  DType chosen_type(const ExportTensor& tensor) {
    if (!options_.type) {
      const DType head = options_.head_type.value_or(tensor.source_type);
      if (tensor.role == TensorRole::head) return fall_back(head, tensor.cols());
      // llama.cpp wants norms, routers and the like in float32, whatever the checkpoint has.
      return tensor.role == TensorRole::exact && !files_.gguf ? DType::f32 : tensor.source_type;
    }
    DType wanted = *options_.type;
    switch (tensor.role) {
      case TensorRole::exact: return DType::f32;
      case TensorRole::patch: return is_quantized(wanted) ? DType::f16 : wanted;
      case TensorRole::small:
        if (four_bit(wanted) || is_quantized(wanted)) wanted = DType::q8_0;
        break;
      case TensorRole::head:
        wanted = options_.head_type.value_or(four_bit(wanted) ? DType::q6_k : wanted);
        break;
      case TensorRole::embedding: break;
      case TensorRole::linear:
        if (tensor.vision) wanted = options_.vision_type.value_or(is_quantized(wanted) ? DType::f16 : wanted);
        break;
    }
    const DType type = fall_back(wanted, tensor.cols());
    if (type != wanted) {
      fallbacks_[fmt::format("{} -> {}", dtype_name(wanted), dtype_name(type))].push_back(tensor.name);
    }
    return type;
  }

  template <typename Keep>
  void write_tensors(GgufWriter& writer, const Keep& keep) {
    std::vector<std::size_t> order;
    for (std::size_t i = 0; i < exporter_.tensors().size(); ++i) {
      const ExportTensor& tensor = exporter_.tensors()[i];
      if (!keep(tensor)) continue;
      order.push_back(i);
      writer.add_tensor({tensor.name, types_[i], tensor.shape});
    }
    if (options_.progress) {
      writer.on_progress([&](std::uint64_t done, std::uint64_t total) {
        options_.progress(static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total, 1)), "write");
      });
    }
    writer.begin();
    for (const std::size_t index : order) write_tensor(writer, index);
    writer.finish();
    if (options_.progress) options_.progress(1, "write");
  }

  void write_tensor(GgufWriter& writer, std::size_t index) {
    const ExportTensor& tensor = exporter_.tensors()[index];
    const DType type = types_[index];
    if (const auto raw = exporter_.raw(index); raw && tensor.source_type == type) {
      for (const std::span<const std::byte> piece : *raw) writer.write(piece);
      exporter_.release(index);
      return;
    }
    const std::int64_t rows = tensor.rows(), cols = tensor.cols();
    const std::int64_t step = std::max<std::int64_t>(1, kPieceFloats / cols);
    const std::uint64_t stride = row_bytes(type, static_cast<std::uint64_t>(cols));
    std::vector<std::byte> encoded;
    for (std::int64_t first = 0; first < rows; first += step) {
      const std::int64_t count = std::min(step, rows - first);
      encoded.resize(stride * static_cast<std::uint64_t>(count));
      pool_.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> row(static_cast<std::size_t>(cols));
        for (std::int64_t r = begin; r < end; ++r) {
          exporter_.read_rows(index, first + r, 1, row.data());
          quantize_row(type, row.data(), encoded.data() + stride * static_cast<std::uint64_t>(r), row.size());
        }
      });
      writer.write(encoded);
    }
    exporter_.release(index);
  }

  model::ModelFiles files_;
  const QuantizeOptions& options_;
  model::TensorExporter exporter_;
  ThreadPool pool_;
  std::vector<DType> types_;
  std::map<std::string, std::vector<std::string>> fallbacks_;
  QuantizeReport report_;
};

}  // namespace

QuantizeReport quantize(const model::ModelFiles& files, const std::filesystem::path& output,
                        const QuantizeOptions& options) {
  for (const auto& [option, type] : {std::pair("--type", options.type),
                                     std::pair("--head-type", options.head_type),
                                     std::pair("--vision-type", options.vision_type)}) {
    if (type && !can_quantize(*type)) {
      fail(ErrorKind::usage, "{} {}: this type is read but not written; use q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4, f16, bf16 or f32",
           option, dtype_name(*type));
    }
  }
  return Conversion(files, options).write(output);
}

}  // namespace heirloom::tools
