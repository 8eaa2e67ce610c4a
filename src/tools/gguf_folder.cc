#include "tools/gguf_folder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "base/thread_pool.h"
#include "engine/text_side.h"
#include "format/quant_blocks.h"
#include "text/tokenizer_json.h"

namespace heirloom::tools {
namespace {

using model::ExportTensor;
using model::HfTransform;
using model::LayerType;
using model::ValueHeads;

constexpr std::int64_t kPieceFloats = 1 << 20;

DType folder_type(DType source) {
  return source == DType::f32 || source == DType::f16 || source == DType::bf16 ? source : DType::bf16;
}

/// `count` rows of exporter tensor `index`, from row `first`.
struct Run {
  std::size_t index;
  std::int64_t first, count;
};

/// One tensor of the folder: rows of the exporter's tensors in another order.
struct Recipe {
  TensorSpec spec;
  std::vector<Run> runs;
  std::vector<std::int64_t> column_map;  // column of the folder's tensor -> the exporter's; empty = identity
  HfTransform stored = HfTransform::none;
};

class Recipes {
 public:
  Recipes(const model::ModelFiles& files, const model::TensorExporter& exporter)
      : text_(files.config.text), family_(files.config.family), exporter_(exporter),
        prefix_(files.config.vision.present ? "model.language_model." : "model.") {
    const std::vector<ExportTensor>& tensors = exporter.tensors();
    for (std::size_t i = 0; i < tensors.size(); ++i) index_of_[tensors[i].name] = i;
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::string& name = tensors[i].name;
      if (name.ends_with("ffn_gate_exps.weight")) {
        add_experts(name);
      } else if (name == "v.patch_embd.weight") {
        add_patches(i);
      } else if (!name.ends_with("ffn_up_exps.weight") && !name.ends_with("ffn_down_exps.weight") && name != "v.patch_embd.weight.1") {
        add(i);
      }
    }
  }
  std::vector<Recipe> all;

 private:
  const ExportTensor& tensor(std::size_t index) const { return exporter_.tensors()[index]; }

  void add(std::size_t index) {
    const ExportTensor& from = tensor(index);
    const model::HfName theirs = model::hf_name(family_, from.name).value();
    Recipe recipe{{theirs.text ? prefix_ + theirs.name : theirs.name, folder_type(from.source_type), from.shape}, {}, {}, theirs.transform};
    if (from.name.ends_with("ssm_conv1d.weight")) recipe.spec.shape = {from.shape.front(), 1, from.shape.back()};
    if (from.name.ends_with("ffn_gate_inp_shexp.weight")) recipe.spec.shape = {1, from.shape.back()};
    const bool tiled = text_.v_heads_tiled && theirs.value_heads != ValueHeads::none;
    if (!tiled) {
      recipe.runs = {{index, 0, from.rows()}};
    } else if (theirs.value_heads == ValueHeads::columns) {
      recipe.runs = {{index, 0, from.rows()}};
      for (const std::int64_t head : grouped_heads()) {
        for (std::int64_t k = 0; k < text_.linear_head_v_dim; ++k) recipe.column_map.push_back(head * text_.linear_head_v_dim + k);
      }
    } else if (from.shape.size() == 1) {
      recipe.runs = {{index, 0, 1}};
      recipe.column_map = grouped_heads();
    } else {
      const std::int64_t before = theirs.value_heads == ValueHeads::rows_after_qk ? 2 * std::int64_t{text_.linear_num_k_heads} * text_.linear_head_k_dim : 0;
      const std::int64_t rows = (from.rows() - before) / text_.linear_num_v_heads;  // of one head
      if (before > 0) recipe.runs.push_back({index, 0, before});
      for (const std::int64_t head : grouped_heads()) recipe.runs.push_back({index, before + head * rows, rows});
    }
    all.push_back(std::move(recipe));
  }

  /// For each value head in a checkpoint's order (head j r + i is the i-th of key head j), its place in a GGUF (i nk + j).
  std::vector<std::int64_t> grouped_heads() const {
    const std::int64_t nk = text_.linear_num_k_heads, ratio = text_.linear_num_v_heads / nk;
    std::vector<std::int64_t> heads;
    for (std::int64_t j = 0; j < nk; ++j) {
      for (std::int64_t i = 0; i < ratio; ++i) heads.push_back(i * nk + j);
    }
    return heads;
  }

  void add_experts(const std::string& gate_name) {
    const auto other = [&](const char* part) {
      return index_of_.at(std::string(gate_name).replace(gate_name.find("ffn_gate"), 8, part));
    };
    const std::size_t gate = index_of_.at(gate_name), up = other("ffn_up"), down = other("ffn_down");
    const std::uint64_t experts = tensor(gate).shape[0], inner = tensor(gate).shape[1], hidden = tensor(gate).shape[2];
    Recipe both{{prefix_ + model::hf_stacked_expert_name(gate_name), folder_type(tensor(gate).source_type), {experts, 2 * inner, hidden}}, {}, {}, HfTransform::none};
    for (std::uint64_t e = 0; e < experts; ++e) {
      for (const std::size_t part : {gate, up}) both.runs.push_back({part, static_cast<std::int64_t>(e * inner), static_cast<std::int64_t>(inner)});
    }
    all.push_back(std::move(both));
    all.push_back({{prefix_ + model::hf_stacked_expert_name(tensor(down).name), folder_type(tensor(down).source_type), tensor(down).shape},
                   {{down, 0, tensor(down).rows()}}, {}, HfTransform::none});
  }

  /// [D, 3, P, P] of each of two frames -> [D, 3, 2, P, P].
  void add_patches(std::size_t first) {
    const ExportTensor& from = tensor(first);
    const std::size_t second = index_of_.at(from.name + ".1");
    const auto side = static_cast<std::int64_t>(from.shape[2]);
    Recipe recipe{{model::hf_name(family_, from.name).value().name, folder_type(from.source_type),
                   {from.shape[0], from.shape[1], 2, from.shape[2], from.shape[3]}}, {}, {}, HfTransform::none};
    for (std::int64_t plane = 0; plane < from.rows() / side; ++plane) {
      for (const std::size_t frame : {first, second}) recipe.runs.push_back({frame, plane * side, side});
    }
    all.push_back(std::move(recipe));
  }

  const model::TextConfig& text_;
  model::Family family_;
  const model::TensorExporter& exporter_;
  std::string prefix_;
  std::unordered_map<std::string, std::size_t> index_of_;
};

void write_recipe(const Recipe& recipe, const model::TensorExporter& exporter, ThreadPool& pool, const ByteSink& sink) {
  const std::int64_t cols = exporter.tensors()[recipe.runs.front().index].cols();
  const std::uint64_t stride = row_bytes(recipe.spec.type, static_cast<std::uint64_t>(cols));
  const std::int64_t step = std::max<std::int64_t>(1, kPieceFloats / cols);
  std::vector<std::byte> encoded;
  for (const Run& run : recipe.runs) {
    for (std::int64_t done = 0; done < run.count; done += step) {
      const std::int64_t count = std::min(step, run.count - done);
      encoded.resize(stride * static_cast<std::uint64_t>(count));
      pool.parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
        std::vector<float> row(static_cast<std::size_t>(cols)), mapped(recipe.column_map.size());
        for (std::int64_t r = begin; r < end; ++r) {
          exporter.read_rows(run.index, run.first + done + r, 1, row.data());
          for (float& value : row) {
            if (recipe.stored == HfTransform::add_one) value -= 1.0f;
            if (recipe.stored == HfTransform::neg_exp) value = std::log(-value);
          }
          for (std::size_t c = 0; c < mapped.size(); ++c) mapped[c] = row[static_cast<std::size_t>(recipe.column_map[c])];
          quantize_row(recipe.spec.type, mapped.empty() ? row.data() : mapped.data(), encoded.data() + stride * static_cast<std::uint64_t>(r), row.size());
        }
      });
      sink(encoded);
    }
  }
  for (std::size_t i = 0; i < recipe.runs.size(); ++i) {
    if (i < 2 || recipe.runs[i].index != recipe.runs[i - 2].index) exporter.release(recipe.runs[i].index);
  }
}

const char* torch_name(DType type) {
  return type == DType::f32 ? "float32" : type == DType::f16 ? "float16" : "bfloat16";
}

OrderedJson text_config(const model::ModelConfig& config, std::size_t experts, const text::Tokenizer& tokenizer, const char* dtype) {
  const model::TextConfig& text = config.text;
  OrderedJson types = OrderedJson::array();
  for (const LayerType type : text.layer_types) types.push_back(type == LayerType::linear_attention ? "linear_attention" : "full_attention");
  const double rotary = static_cast<double>(text.rotary_dim) / text.head_dim;
  OrderedJson json{{"model_type", "qwen3_5_moe_text"},
                   {"dtype", dtype},
                   {"vocab_size", text.vocab_size},
                   {"hidden_size", text.hidden_size},
                   {"num_hidden_layers", text.num_layers},
                   {"layer_types", types},
                   {"num_attention_heads", text.num_q_heads},
                   {"num_key_value_heads", text.num_kv_heads},
                   {"head_dim", text.head_dim},
                   {"attention_bias", false},
                   {"linear_num_key_heads", text.linear_num_k_heads},
                   {"linear_num_value_heads", text.linear_num_v_heads},
                   {"linear_key_head_dim", text.linear_head_k_dim},
                   {"linear_value_head_dim", text.linear_head_v_dim},
                   {"linear_conv_kernel_dim", text.linear_conv_kernel},
                   {"num_experts", experts},
                   {"num_experts_per_tok", text.num_experts_per_token},
                   {"moe_intermediate_size", text.moe_intermediate_size},
                   {"shared_expert_intermediate_size", text.shared_expert_intermediate_size},
                   {"hidden_act", "silu"},
                   {"rms_norm_eps", text.rms_norm_eps},
                   {"max_position_embeddings", text.context_length},
                   {"partial_rotary_factor", rotary},
                   {"rope_parameters",
                    {{"rope_type", "default"},
                     {"rope_theta", text.rope_theta},
                     {"partial_rotary_factor", rotary},
                     {"mrope_interleaved", true},
                     {"mrope_section", {text.mrope_section[0], text.mrope_section[1], text.mrope_section[2]}}}},
                   {"tie_word_embeddings", text.tie_word_embeddings}};
  if (tokenizer.bos_id()) json["bos_token_id"] = *tokenizer.bos_id();
  if (tokenizer.eos_id()) json["eos_token_id"] = *tokenizer.eos_id();
  if (tokenizer.pad_id()) json["pad_token_id"] = *tokenizer.pad_id();
  return json;
}

OrderedJson model_config(const model::ModelConfig& config, std::size_t experts, const text::Tokenizer& tokenizer, DType type) {
  OrderedJson text = text_config(config, experts, tokenizer, torch_name(type));
  if (!config.vision.present) {
    text["architectures"] = {"Qwen3_5MoeForCausalLM"};
    return text;
  }
  const model::VisionConfig& vision = config.vision;
  OrderedJson json{{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
                   {"model_type", "qwen3_5_moe"},
                   {"dtype", torch_name(type)},
                   {"tie_word_embeddings", config.text.tie_word_embeddings},
                   {"text_config", text},
                   {"vision_config",
                    {{"model_type", "qwen3_5_moe_vision"},
                     {"depth", vision.depth},
                     {"hidden_size", vision.hidden_size},
                     {"intermediate_size", vision.intermediate_size},
                     {"num_heads", vision.num_heads},
                     {"num_position_embeddings", vision.num_position_embeddings},
                     {"out_hidden_size", vision.out_hidden_size},
                     {"patch_size", vision.patch_size},
                     {"spatial_merge_size", vision.spatial_merge_size},
                     {"temporal_patch_size", vision.temporal_patch_size},
                     {"in_channels", 3},
                     {"hidden_act", "gelu_pytorch_tanh"}}}};
  for (const auto& [key, token] : {std::pair("image_token_id", "<|image_pad|>"), std::pair("video_token_id", "<|video_pad|>"),
                                   std::pair("vision_start_token_id", "<|vision_start|>"), std::pair("vision_end_token_id", "<|vision_end|>")}) {
    if (const auto id = tokenizer.token_to_id(token)) json[key] = *id;
  }
  return json;
}

/// The file's own generation_config.json, or one made of its end tokens and sampling keys.
std::string generation_config(const model::ModelFiles& files, const text::Tokenizer& tokenizer) {
  if (!files.generation_config_json.empty()) return files.generation_config_json;
  const engine::GenerationDefaults defaults = engine::generation_defaults(files, tokenizer);
  OrderedJson json{{"eos_token_id", defaults.end_tokens}, {"do_sample", defaults.sampling.temperature > 0}};
  if (tokenizer.pad_id()) json["pad_token_id"] = *tokenizer.pad_id();
  if (defaults.sampling.temperature > 0) {
    json["temperature"] = defaults.sampling.temperature;
    json["top_k"] = defaults.sampling.top_k;
    json["top_p"] = defaults.sampling.top_p;
  }
  return json.dump(2) + "\n";
}

void write_texts(const model::ModelFiles& files, std::size_t experts, DType type, FolderWriter& folder) {
  const text::Tokenizer tokenizer = engine::open_tokenizer(files);
  folder.write_text("config.json", model_config(files.config, experts, tokenizer, type).dump(2) + "\n");
  folder.write_text("generation_config.json", generation_config(files, tokenizer));
  folder.write_text("tokenizer.json", text::tokenizer_json(tokenizer));
  folder.write_text("tokenizer_config.json", text::tokenizer_config_json(tokenizer, files.config.text.context_length));
  if (!files.chat_template.empty()) folder.write_text("chat_template.jinja", files.chat_template);
  if (!files.config.vision.present) return;
  OrderedJson image = parse_json(files.preprocessor_json.empty() ? "{}" : files.preprocessor_json, files.path.string());
  folder.write_text("preprocessor_config.json", image.dump(2) + "\n");
  // transformers 5 takes both processors from here; pictures and the frames of videos are cut alike.
  OrderedJson video = image;
  video.erase("image_processor_type");
  video["video_processor_type"] = "Qwen3VLVideoProcessor";
  folder.write_text("processor_config.json",
                    OrderedJson{{"processor_class", "Qwen3VLProcessor"}, {"image_processor", image}, {"video_processor", video}}.dump(2) + "\n");
}

}  // namespace

std::uint64_t write_folder_of_gguf(const model::ModelFiles& files, const model::ExpertSelection& kept, int threads,
                                   FolderWriter& folder, const WriteProgress& progress) {
  HEIRLOOM_CHECK(files.config.family == model::Family::qwen3_5_moe && files.naming == model::WeightReader::Naming::gguf);
  const model::TensorExporter exporter(files, kept);
  const Recipes recipes(files, exporter);
  ThreadPool pool(threads);
  std::vector<FolderTensor> tensors;
  std::uint64_t total = 0;
  for (const Recipe& recipe : recipes.all) {
    std::uint64_t elements = 1;
    for (const std::uint64_t dim : recipe.spec.shape) elements *= dim;
    FolderTensor tensor{recipe.spec, row_bytes(recipe.spec.type, elements), {}};
    tensor.write = [&](const ByteSink& sink) { write_recipe(recipe, exporter, pool, sink); };
    total += tensor.bytes;
    tensors.push_back(std::move(tensor));
  }
  write_texts(files, kept.front().size(), recipes.all.front().spec.type, folder);
  folder.write_tensors(tensors, progress);
  return total;
}

}  // namespace heirloom::tools
