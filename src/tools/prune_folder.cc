#include "tools/prune_folder.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "tools/folder_writer.h"
#include "tools/gguf_folder.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

/// A number at the front of `text`, which is cut off together with the dot behind it.
std::optional<std::size_t> take_number(std::string_view& text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

class FolderPlan {
 public:
  FolderPlan(const TensorSource& source, const model::ExpertSelection& kept) : source_(source), kept_(kept) {
    for (const std::string& name : source.names()) {
      if (!name.starts_with("mtp.")) plan(source.require(name));
    }
  }

  std::vector<FolderTensor> tensors;
  std::uint64_t total_bytes = 0;

 private:
  void plan(const TensorView& view) {
    std::string_view rest = view.name;
    bool layered = false;
    for (const std::string_view prefix : {"model.language_model.layers.", "model.layers."}) {
      if (!rest.starts_with(prefix)) continue;
      rest.remove_prefix(prefix.size());
      layered = true;
      break;
    }
    const std::optional<std::size_t> layer = layered ? take_number(rest) : std::nullopt;
    if (!layer || *layer >= kept_.size()) return add(view, view.name, nullptr);
    const std::vector<std::int64_t>& kept = kept_[*layer];
    if (rest == "mlp.gate.weight" || rest == "mlp.experts.gate_up_proj" || rest == "mlp.experts.down_proj") {
      return add(view, view.name, &kept);
    }
    constexpr std::string_view kOneExpert = "mlp.experts.";
    if (!rest.starts_with(kOneExpert)) return add(view, view.name, nullptr);
    const std::size_t front = view.name.size() - rest.size() + kOneExpert.size();
    rest.remove_prefix(kOneExpert.size());
    const std::optional<std::size_t> expert = take_number(rest);
    if (!expert) return add(view, view.name, nullptr);
    const auto at = std::lower_bound(kept.begin(), kept.end(), static_cast<std::int64_t>(*expert));
    if (at == kept.end() || *at != static_cast<std::int64_t>(*expert)) return;  // goes
    add(view, view.name.substr(0, front) + std::to_string(at - kept.begin()) + "." + std::string(rest), nullptr);
  }

  /// The whole tensor, or the slices `kept` of its first dimension.
  void add(const TensorView& view, std::string name, const std::vector<std::int64_t>* kept) {
    FolderTensor tensor{{std::move(name), view.type, view.shape}, view.data.size(), {}};
    if (kept != nullptr) {
      HEIRLOOM_CHECK(!view.shape.empty() && static_cast<std::uint64_t>(kept->back()) < view.shape.front());
      tensor.bytes = tensor.bytes / view.shape.front() * kept->size();
      tensor.spec.shape.front() = kept->size();
    }
    tensor.write = [&view, kept, this](const ByteSink& sink) {
      if (kept == nullptr) {
        sink(view.data);
      } else {
        const std::uint64_t slice = view.data.size() / view.shape.front();
        for (const std::int64_t expert : *kept) sink(view.data.subspan(static_cast<std::uint64_t>(expert) * slice, slice));
      }
      source_.release(view);
    };
    total_bytes += tensor.bytes;
    tensors.push_back(std::move(tensor));
  }

  const TensorSource& source_;
  const model::ExpertSelection& kept_;
};

std::string pruned_config(const std::string& text, const std::string& source, std::size_t experts) {
  OrderedJson json = parse_json(text, source);
  OrderedJson& config = json.contains("text_config") ? json["text_config"] : json;
  config["num_experts"] = experts;
  if (config.contains("mtp_num_hidden_layers")) config["mtp_num_hidden_layers"] = 0;
  return json.dump(2) + "\n";
}

std::uint64_t prune_folder(const model::ModelFiles& files, const model::ExpertSelection& kept, FolderWriter& folder,
                           const WriteProgress& progress) {
  for (const auto& entry : fs::directory_iterator(files.path)) {
    const std::string file = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || file == "model.safetensors.index.json") continue;
    if (file == "config.json") {
      folder.write_text(file, pruned_config(read_text_file(entry.path()), entry.path().string(), kept.front().size()));
    } else if (extension == ".json" || extension == ".jinja" || extension == ".txt") {
      folder.write_text(file, read_text_file(entry.path()));
    }
  }
  const FolderPlan plan(*files.text, kept);
  folder.write_tensors(plan.tensors, progress);
  return plan.total_bytes;
}

}  // namespace

void check_folder_output(const fs::path& output, const PruneOptions& options) {
  if (options.text_only || !options.vision_output.empty()) {
    fail(ErrorKind::usage, "{}: a folder holds the whole model; leave --text-only and --vision-output away or give a name ending in .gguf",
         output.string());
  }
  if (options.type) {
    fail(ErrorKind::usage, "{}: a folder keeps the source's float types and gets bfloat16 for quantised ones; leave --type away or give a name ending in .gguf",
         output.string());
  }
  std::error_code error;
  if (fs::exists(output, error)) {
    fail(ErrorKind::usage, "{}: exists already; expected the name of a folder to make, or of a .gguf file", output.string());
  }
}

std::uint64_t write_pruned_folder(const model::ModelFiles& files, const fs::path& output, const model::ExpertSelection& kept,
                                  int threads, const WriteProgress& progress) {
  FolderWriter folder(output);
  const std::uint64_t bytes = files.gguf ? write_folder_of_gguf(files, kept, threads, folder, progress)
                                         : prune_folder(files, kept, folder, progress);
  folder.commit();
  if (progress) progress(1, "write");
  return bytes;
}

}  // namespace heirloom::tools
