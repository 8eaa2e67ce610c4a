#include "model/tensor_names.h"

#include <array>

#include "base/check.h"

namespace heirloom::model {
namespace {

struct Row {
  std::string_view ours, theirs;
  HfTransform transform = HfTransform::none;
  ValueHeads value_heads = ValueHeads::none;
};

constexpr Row kGlobal[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output_norm.weight", "norm.weight", HfTransform::add_one},
};

// blk.N.X <-> layers.N.X
constexpr Row kLayer[] = {
    {"attn_norm.weight", "input_layernorm.weight", HfTransform::add_one},
    {"post_attention_norm.weight", "post_attention_layernorm.weight", HfTransform::add_one},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight", HfTransform::none, ValueHeads::rows_after_qk},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight", HfTransform::none, ValueHeads::rows},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight", HfTransform::none, ValueHeads::rows},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight", HfTransform::none, ValueHeads::rows},
    {"ssm_a", "linear_attn.A_log", HfTransform::neg_exp, ValueHeads::rows},
    {"ssm_dt.bias", "linear_attn.dt_bias", HfTransform::none, ValueHeads::rows},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight", HfTransform::none, ValueHeads::rows_after_qk},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight", HfTransform::none, ValueHeads::columns},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight", HfTransform::add_one},
    {"attn_k_norm.weight", "self_attn.k_norm.weight", HfTransform::add_one},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
};

// Stems (".weight" and ".bias" follow). v.blk.N.X first, then the rest.
constexpr Row kQwenBlock[] = {
    {"ln1", "norm1"},           {"ln2", "norm2"},           {"attn_qkv", "attn.qkv"},
    {"attn_out", "attn.proj"},  {"ffn_up", "mlp.linear_fc1"}, {"ffn_down", "mlp.linear_fc2"},
};
constexpr Row kQwenTower[] = {
    {"v.patch_embd", "model.visual.patch_embed.proj"},
    {"v.position_embd", "model.visual.pos_embed"},
    {"v.post_ln", "model.visual.merger.norm"},
    {"mm.0", "model.visual.merger.linear_fc1"},
    {"mm.2", "model.visual.merger.linear_fc2"},
};
constexpr Row kMiniCpmBlock[] = {
    {"ln1", "layer_norm1"},          {"ln2", "layer_norm2"},          {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},  {"attn_v", "self_attn.v_proj"},  {"attn_out", "self_attn.out_proj"},
    {"ffn_up", "mlp.fc1"},           {"ffn_down", "mlp.fc2"},
};
constexpr Row kMiniCpmTower[] = {
    {"v.patch_embd", "model.vision_tower.embeddings.patch_embedding"},
    {"v.position_embd", "model.vision_tower.embeddings.position_embedding"},
    {"v.post_ln", "model.vision_tower.post_layernorm"},
    {"v.vit_merger.ln1", "model.vision_tower.vit_merger.layer_norm1"},
    {"v.vit_merger.attn_q", "model.vision_tower.vit_merger.self_attn.q_proj"},
    {"v.vit_merger.attn_k", "model.vision_tower.vit_merger.self_attn.k_proj"},
    {"v.vit_merger.attn_v", "model.vision_tower.vit_merger.self_attn.v_proj"},
    {"v.vit_merger.attn_out", "model.vision_tower.vit_merger.self_attn.out_proj"},
    {"v.vit_merger.ds_ln", "model.vision_tower.vit_merger.pre_norm"},
    {"v.vit_merger.ds_ffn_up", "model.vision_tower.vit_merger.linear_1"},
    {"v.vit_merger.ds_ffn_down", "model.vision_tower.vit_merger.linear_2"},
    {"mm.input_norm", "model.merger.mlp.0.pre_norm"},
    {"mm.up", "model.merger.mlp.0.linear_1"},
    {"mm.down", "model.merger.mlp.0.linear_2"},
};

/// Cuts "PREFIX" + number + "." off the front: the number and the rest.
std::optional<std::pair<std::string_view, std::string_view>> split_indexed(std::string_view name,
                                                                           std::string_view prefix) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  const std::size_t dot = name.find('.');
  if (dot == std::string_view::npos || dot == 0) return std::nullopt;
  return std::pair(name.substr(0, dot), name.substr(dot + 1));
}

template <std::size_t N>
std::optional<std::string> map_stem(const Row (&rows)[N], std::string_view name) {
  const std::size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return std::nullopt;
  for (const Row& row : rows) {
    if (row.ours == name.substr(0, dot)) return std::string(row.theirs) + std::string(name.substr(dot));
  }
  return std::nullopt;
}

std::optional<HfName> vision_name(Family family, std::string_view name) {
  const bool minicpm = family == Family::minicpmv4_6;
  std::optional<std::string> theirs;
  if (const auto block = split_indexed(name, "v.blk.")) {
    theirs = minicpm ? map_stem(kMiniCpmBlock, block->second) : map_stem(kQwenBlock, block->second);
    if (theirs) {
      const std::string_view prefix = minicpm ? "model.vision_tower.encoder.layers." : "model.visual.blocks.";
      theirs = std::string(prefix) + std::string(block->first) + "." + *theirs;
    }
  } else {
    theirs = minicpm ? map_stem(kMiniCpmTower, name) : map_stem(kQwenTower, name);
    if (!theirs && minicpm) {  // further rounds of the final merger: mm.I.{input_norm,up,down}
      if (const auto round = split_indexed(name, "mm.")) {
        theirs = map_stem(kMiniCpmTower, "mm." + std::string(round->second));
        if (theirs) theirs->replace(theirs->find("mlp.0."), 6, "mlp." + std::string(round->first) + ".");
      }
    }
  }
  if (!theirs) return std::nullopt;
  return HfName{*theirs, false};
}

struct ExpertName {
  std::string layer;
  std::string_view part;  // "gate", "up" or "down"
};

ExpertName split_expert_name(std::string_view name) {
  const auto block = split_indexed(name, "blk.");
  HEIRLOOM_CHECK(block.has_value());
  for (const std::string_view part : {"gate", "up", "down"}) {
    if (block->second == "ffn_" + std::string(part) + "_exps.weight") return {std::string(block->first), part};
  }
  HEIRLOOM_CHECK(false);
  return {};
}

}  // namespace

std::optional<HfName> hf_name(Family family, std::string_view name) {
  if (name == "output.weight") return HfName{"lm_head.weight", false};
  for (const Row& row : kGlobal) {
    if (row.ours == name) return HfName{std::string(row.theirs), true, row.transform, row.value_heads};
  }
  if (const auto block = split_indexed(name, "blk.")) {
    for (const Row& row : kLayer) {
      if (row.ours != block->second) continue;
      return HfName{"layers." + std::string(block->first) + "." + std::string(row.theirs), true, row.transform,
                    row.value_heads};
    }
    return std::nullopt;
  }
  return vision_name(family, name);
}

std::string hf_expert_name(std::string_view name, std::int64_t expert) {
  const ExpertName split = split_expert_name(name);
  return "layers." + split.layer + ".mlp.experts." + std::to_string(expert) + "." + std::string(split.part) +
         "_proj.weight";
}

std::string hf_stacked_expert_name(std::string_view name) {
  const ExpertName split = split_expert_name(name);
  return "layers." + split.layer + ".mlp.experts." + (split.part == "down" ? "down_proj" : "gate_up_proj");
}

std::vector<std::string> text_tensor_names(const ModelConfig& config) {
  const TextConfig& text = config.text;
  std::vector<std::string> names{"token_embd.weight"};
  if (!text.tie_word_embeddings) names.emplace_back("output.weight");
  names.emplace_back("output_norm.weight");
  for (std::size_t i = 0; i < text.layer_types.size(); ++i) {
    const std::string prefix = "blk." + std::to_string(i) + ".";
    const auto add = [&](std::initializer_list<const char*> parts) {
      for (const char* part : parts) names.push_back(prefix + part);
    };
    add({"attn_norm.weight", "post_attention_norm.weight"});
    if (text.layer_types[i] == LayerType::linear_attention) {
      add({"attn_qkv.weight", "attn_gate.weight", "ssm_alpha.weight", "ssm_beta.weight", "ssm_a", "ssm_dt.bias",
           "ssm_conv1d.weight", "ssm_norm.weight", "ssm_out.weight"});
    } else {
      add({"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q_norm.weight",
           "attn_k_norm.weight"});
    }
    if (text.num_experts == 0) {
      add({"ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"});
    } else {
      add({"ffn_gate_inp.weight", "ffn_gate_exps.weight", "ffn_up_exps.weight", "ffn_down_exps.weight",
           "ffn_gate_inp_shexp.weight", "ffn_gate_shexp.weight", "ffn_up_shexp.weight", "ffn_down_shexp.weight"});
    }
  }
  return names;
}

std::vector<std::string> vision_tensor_names(const ModelConfig& config) {
  std::vector<std::string> names;
  if (!config.vision.present) return names;
  const auto add_both = [&](const std::string& stem) {
    names.push_back(stem + ".weight");
    names.push_back(stem + ".bias");
  };
  const bool minicpm = config.family == Family::minicpmv4_6;
  add_both("v.patch_embd");
  names.emplace_back("v.position_embd.weight");
  for (int i = 0; i < config.vision.depth; ++i) {
    const std::string prefix = "v.blk." + std::to_string(i) + ".";
    if (minicpm) {
      for (const Row& row : kMiniCpmBlock) add_both(prefix + std::string(row.ours));
    } else {
      for (const Row& row : kQwenBlock) add_both(prefix + std::string(row.ours));
    }
  }
  if (minicpm) {
    for (const Row& row : kMiniCpmTower) {
      if (row.ours.starts_with("v.") && (row.ours == "v.post_ln" || row.ours.starts_with("v.vit_merger."))) {
        add_both(std::string(row.ours));
      }
    }
    for (int i = 0; i < config.vision.merger_times; ++i) {
      const std::string prefix = i == 0 ? "mm." : "mm." + std::to_string(i) + ".";
      for (const char* part : {"input_norm", "up", "down"}) add_both(prefix + part);
    }
  } else {
    for (const char* stem : {"v.post_ln", "mm.0", "mm.2"}) add_both(stem);
  }
  return names;
}

}  // namespace heirloom::model
