#include "model/tensor_export.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/check.h"
#include "format/quant_blocks.h"

namespace heirloom::model {
namespace {

TensorRole role_of(const std::string& name, const TextConfig& text) {
  if (name == "output.weight") return TensorRole::head;
  if (name == "token_embd.weight") return text.tie_word_embeddings ? TensorRole::head : TensorRole::embedding;
  if (name.starts_with("v.patch_embd.weight")) return TensorRole::patch;
  if (!name.ends_with(".weight") || name.find("norm") != std::string::npos || name.find(".ln") != std::string::npos ||
      name.find("_ln") != std::string::npos || name.find("conv1d") != std::string::npos ||
      name.find("gate_inp") != std::string::npos || name.find("position_embd") != std::string::npos) {
    return TensorRole::exact;
  }
  if (name.ends_with("ssm_alpha.weight") || name.ends_with("ssm_beta.weight")) return TensorRole::small;
  return TensorRole::linear;
}

/// The N of blk.N.
std::size_t layer_of(const std::string& name) {
  std::size_t layer = 0;
  const auto [end, error] = std::from_chars(name.data() + 4, name.data() + name.size(), layer);
  HEIRLOOM_CHECK(name.starts_with("blk.") && error == std::errc());
  return layer;
}

}  // namespace

std::int64_t ExportTensor::rows() const {
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= static_cast<std::int64_t>(shape[i]);
  return rows;
}

TensorExporter::TensorExporter(const ModelFiles& files, const ExpertSelection& kept)
    : files_(files), kept_(kept), reader_(files.naming, files.config, files.text, files.vision) {
  for (const std::string& name : text_tensor_names(files.config)) add(name, false);
  for (const std::string& name : vision_tensor_names(files.config)) {
    if (name == "v.patch_embd.weight" && files.config.family != Family::minicpmv4_6) {
      add_patches(name);
    } else if (reader_.has(name) || !name.starts_with("v.vit_merger.")) {  // a file made for 4x mode has no window merger
      add(name, true);
    }
  }
}

// GGUF order of value heads: head i * nk + j (i-th of key head j) where HF has j * r + i. Entries before `first` keep
// their place; each head has `head_size` of them.
std::vector<std::int64_t> TensorExporter::tiled_order(std::int64_t first, std::int64_t head_size) const {
  const TextConfig& text = files_.config.text;
  const std::int64_t nk = text.linear_num_k_heads, ratio = text.linear_num_v_heads / nk;
  std::vector<std::int64_t> order;
  for (std::int64_t k = 0; k < first; ++k) order.push_back(k);
  for (std::int64_t i = 0; i < ratio; ++i) {
    for (std::int64_t j = 0; j < nk; ++j) {
      for (std::int64_t k = 0; k < head_size; ++k) order.push_back(first + (j * ratio + i) * head_size + k);
    }
  }
  return order;
}

void TensorExporter::add(const std::string& name, bool vision) {
  const TextConfig& text = files_.config.text;
  ExportTensor tensor;
  Source source;
  tensor.name = name;
  tensor.vision = vision;
  tensor.role = role_of(name, text);
  if (name.find("_exps.") != std::string::npos) {
    const bool down = name.find("ffn_down") != std::string::npos;
    const std::int64_t rows = down ? text.hidden_size : text.moe_intermediate_size;
    const std::int64_t cols = down ? text.moe_intermediate_size : text.hidden_size;
    source.data = reader_.experts(name, text.num_experts, rows, cols);
    tensor.shape = {static_cast<std::uint64_t>(text.num_experts), static_cast<std::uint64_t>(rows),
                    static_cast<std::uint64_t>(cols)};
  } else {
    const TensorView& view = reader_.tensor(name);
    tensor.shape = view.shape;
    if (name.ends_with("ssm_conv1d.weight")) {
      tensor.shape = {view.shape.front(), view.shape.back()};  // [C, 1, 4] -> [C, 4]
    }
    source.data = {view.name, view.type, 1, tensor.rows(), tensor.cols(), {{view.data.data(), tensor.rows()}}};
  }
  tensor.source_type = source.data.type;
  if (!kept_.empty()) keep_experts(name, tensor, source);
  if (files_.naming == WeightReader::Naming::hugging_face && name.find("_exps.") == std::string::npos) {
    const HfName theirs = hf_name(files_.config.family, name).value();
    source.transform = theirs.transform;
    if (text.linear_num_v_heads != text.linear_num_k_heads) {
      const std::int64_t dv = text.linear_head_v_dim;
      const std::int64_t qk = 2 * static_cast<std::int64_t>(text.linear_num_k_heads) * text.linear_head_k_dim;
      switch (theirs.value_heads) {
        case ValueHeads::none: break;
        case ValueHeads::rows:
          if (tensor.shape.size() == 1) {
            source.column_map = tiled_order(0, 1);
          } else {
            source.row_map = tiled_order(0, tensor.rows() / text.linear_num_v_heads);
          }
          break;
        case ValueHeads::rows_after_qk: source.row_map = tiled_order(qk, dv); break;
        case ValueHeads::columns: source.column_map = tiled_order(0, dv); break;
      }
    }
  }
  tensors_.push_back(std::move(tensor));
  sources_.push_back(std::move(source));
}

// Leaves the slabs of the kept experts: whole matrices of an expert tensor, single rows of the router.
void TensorExporter::keep_experts(const std::string& name, ExportTensor& tensor, Source& source) const {
  const bool experts = name.find("_exps.") != std::string::npos;
  if (!experts && !name.ends_with("ffn_gate_inp.weight")) return;
  const std::int64_t rows_each = experts ? source.data.rows : 1;
  std::vector<ops::WeightData::Slab> slabs;
  const std::vector<std::int64_t>& kept = kept_.at(layer_of(name));
  for (const std::int64_t expert : kept) slabs.push_back({row_data(source, expert * rows_each), rows_each});
  source.data.slabs = std::move(slabs);
  (experts ? source.data.experts : source.data.rows) = static_cast<std::int64_t>(kept.size());
  tensor.shape.front() = kept.size();
}

// Qwen's patch embedding has two frames: one [D, 3, 2, P, P] tensor in a checkpoint, two [D, 3, P, P] tensors in a GGUF.
void TensorExporter::add_patches(const std::string& name) {
  if (files_.naming == WeightReader::Naming::gguf) {
    add(name, true);
    add(name + ".1", true);
    return;
  }
  const VisionConfig& vision = files_.config.vision;
  const TensorView& view = reader_.tensor(name);
  const auto patch = static_cast<std::int64_t>(vision.patch_size) * vision.patch_size;
  const std::int64_t hidden = vision.hidden_size, channels = 3, frames = 2;
  if (view.elements() != static_cast<std::uint64_t>(hidden * channels * frames * patch)) {
    fail(ErrorKind::bad_file, "{}: {}: shape {}, expected [{}, 3, 2, {}, {}]", files_.path.string(), view.name,
         shape_string(view.shape), hidden, vision.patch_size, vision.patch_size);
  }
  const auto side = static_cast<std::uint64_t>(vision.patch_size);
  for (std::int64_t frame = 0; frame < frames; ++frame) {
    ExportTensor tensor{frame == 0 ? name : name + ".1",
                        {static_cast<std::uint64_t>(hidden), static_cast<std::uint64_t>(channels), side, side},
                        TensorRole::patch, true, view.type};
    Source source;
    // Seen as rows of one pixel line: row (d, c, frame, y) of the file.
    source.data = {view.name, view.type, 1, hidden * channels * frames * vision.patch_size, vision.patch_size,
                   {{view.data.data(), hidden * channels * frames * vision.patch_size}}};
    for (std::int64_t dc = 0; dc < hidden * channels; ++dc) {
      for (std::int64_t y = 0; y < vision.patch_size; ++y) {
        source.row_map.push_back((dc * frames + frame) * vision.patch_size + y);
      }
    }
    tensors_.push_back(std::move(tensor));
    sources_.push_back(std::move(source));
  }
}

const std::byte* TensorExporter::row_data(const Source& source, std::int64_t row) const {
  const std::uint64_t stride = row_bytes(source.data.type, static_cast<std::uint64_t>(source.data.cols));
  for (const ops::WeightData::Slab& slab : source.data.slabs) {
    if (row < slab.rows) return slab.data + stride * static_cast<std::uint64_t>(row);
    row -= slab.rows;
  }
  HEIRLOOM_CHECK(false);
  return nullptr;
}

void TensorExporter::read_rows(std::size_t index, std::int64_t first, std::int64_t count, float* out) const {
  const Source& source = sources_[index];
  const std::int64_t cols = source.data.cols;
  std::vector<float> row(source.column_map.empty() ? 0 : static_cast<std::size_t>(cols));
  for (std::int64_t r = 0; r < count; ++r) {
    const std::int64_t from = source.row_map.empty() ? first + r : source.row_map[static_cast<std::size_t>(first + r)];
    float* target = out + r * cols;
    float* values = row.empty() ? target : row.data();
    dequantize_row(source.data.type, row_data(source, from), values, static_cast<std::size_t>(cols));
    for (std::int64_t c = 0; c < cols; ++c) {
      if (source.transform == HfTransform::add_one) values[c] = 1.0f + values[c];
      if (source.transform == HfTransform::neg_exp) values[c] = -std::exp(values[c]);
    }
    for (std::size_t c = 0; c < source.column_map.size(); ++c) {
      target[c] = values[static_cast<std::size_t>(source.column_map[c])];
    }
  }
}

std::optional<std::vector<std::span<const std::byte>>> TensorExporter::raw(std::size_t index) const {
  const Source& source = sources_[index];
  if (source.transform != HfTransform::none || !source.row_map.empty() || !source.column_map.empty()) return std::nullopt;
  const std::uint64_t stride = row_bytes(source.data.type, static_cast<std::uint64_t>(source.data.cols));
  std::vector<std::span<const std::byte>> pieces;
  for (const ops::WeightData::Slab& slab : source.data.slabs) {
    pieces.emplace_back(slab.data, stride * static_cast<std::uint64_t>(slab.rows));
  }
  return pieces;
}

void TensorExporter::release(std::size_t index) const { reader_.release(sources_[index].data); }

}  // namespace heirloom::model
