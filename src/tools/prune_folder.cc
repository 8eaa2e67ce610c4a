#include "tools/prune_folder.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/mapped_file.h"
#include "format/safetensors_writer.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kShardBytes = 4'000'000'000;  // as transformers cuts them, roughly

/// A number at the front of `text`, which is cut off together with the dot behind it.
std::optional<std::size_t> take_number(std::string_view& text) {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != '.') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

/// Where the bytes of one written tensor come from: slices of a source tensor along its first dimension.
struct Source {
  const TensorView* view;
  const std::vector<std::int64_t>* kept;  // null: the whole tensor
};

class FolderPlan {
 public:
  FolderPlan(const TensorSource& source, const model::ExpertSelection& kept) : kept_(kept) {
    for (const std::string& name : source.names()) {
      if (!name.starts_with("mtp.")) plan(source.require(name));
    }
  }

  struct Tensor {
    TensorSpec spec;
    Source source;
    std::uint64_t bytes;
  };
  std::vector<Tensor> tensors;
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

  void add(const TensorView& view, std::string name, const std::vector<std::int64_t>* kept) {
    TensorSpec spec{std::move(name), view.type, view.shape};
    std::uint64_t bytes = view.data.size();
    if (kept != nullptr) {
      HEIRLOOM_CHECK(!view.shape.empty() && static_cast<std::uint64_t>(kept->back()) < view.shape.front());
      bytes = bytes / view.shape.front() * kept->size();
      spec.shape.front() = kept->size();
    }
    tensors.push_back({std::move(spec), {&view, kept}, bytes});
    total_bytes += bytes;
  }

  const model::ExpertSelection& kept_;
};

/// The folder under another name until it is complete; removed if that never happens.
class PartialFolder {
 public:
  explicit PartialFolder(const fs::path& final_name)
      : final_(final_name), path_(final_name.string() + ".partial-" + std::to_string(::getpid())) {
    std::error_code error;
    fs::create_directory(path_, error);
    if (error) fail(ErrorKind::usage, "{}: cannot create: {}", final_.string(), error.message());
  }
  ~PartialFolder() {
    std::error_code ignored;
    if (!done_) fs::remove_all(path_, ignored);
  }
  PartialFolder(const PartialFolder&) = delete;
  PartialFolder& operator=(const PartialFolder&) = delete;

  void commit() {
    std::error_code error;
    fs::rename(path_, final_, error);
    if (error) fail(ErrorKind::bad_file, "{}: cannot rename: {}", final_.string(), error.message());
    done_ = true;
  }
  const fs::path& path() const { return path_; }

 private:
  fs::path final_, path_;
  bool done_ = false;
};

void write_text(const fs::path& path, const std::string& text) {
  OutputFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

std::string pruned_config(const std::string& text, const std::string& source, std::size_t experts) {
  OrderedJson json = parse_json(text, source);
  OrderedJson& config = json.contains("text_config") ? json["text_config"] : json;
  config["num_experts"] = experts;
  if (config.contains("mtp_num_hidden_layers")) config["mtp_num_hidden_layers"] = 0;
  return json.dump(2) + "\n";
}

class ShardWriter {
 public:
  ShardWriter(const FolderPlan& plan, const TensorSource& source,
              const std::function<void(double fraction, std::string_view what)>& progress)
      : plan_(plan), source_(source), progress_(progress) {}

  void write(const fs::path& folder) {
    std::vector<std::vector<const FolderPlan::Tensor*>> shards(1);
    std::uint64_t bytes = 0;
    for (const FolderPlan::Tensor& tensor : plan_.tensors) {
      if (bytes > 0 && bytes + tensor.bytes > kShardBytes) {
        shards.emplace_back();
        bytes = 0;
      }
      shards.back().push_back(&tensor);
      bytes += tensor.bytes;
    }
    std::map<std::string, std::string> shard_of;
    for (std::size_t s = 0; s < shards.size(); ++s) {
      const std::string name = shards.size() == 1 ? "model.safetensors"
                                                  : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
      write_shard(folder / name, shards[s]);
      for (const FolderPlan::Tensor* tensor : shards[s]) shard_of[tensor->spec.name] = name;
    }
    if (shards.size() == 1) return;
    const nlohmann::json index{{"metadata", {{"total_size", plan_.total_bytes}}}, {"weight_map", shard_of}};
    write_text(folder / "model.safetensors.index.json", index.dump(2) + "\n");
  }

 private:
  void write_shard(const fs::path& path, const std::vector<const FolderPlan::Tensor*>& tensors) {
    SafetensorsWriter writer(path, {{"format", "pt"}});
    std::unordered_map<std::string, const FolderPlan::Tensor*> by_name;
    for (const FolderPlan::Tensor* tensor : tensors) {
      writer.add_tensor(tensor->spec);
      by_name.emplace(tensor->spec.name, tensor);
    }
    for (const TensorSpec& spec : writer.begin()) {
      const FolderPlan::Tensor& tensor = *by_name.at(spec.name);
      const std::span<const std::byte> data = tensor.source.view->data;
      if (tensor.source.kept == nullptr) {
        writer.write(data);
      } else {
        const std::uint64_t slice = data.size() / tensor.source.view->shape.front();
        for (const std::int64_t expert : *tensor.source.kept) {
          writer.write(data.subspan(static_cast<std::uint64_t>(expert) * slice, slice));
        }
      }
      source_.release(*tensor.source.view);
      done_bytes_ += tensor.bytes;
      if (progress_) progress_(static_cast<double>(done_bytes_) / static_cast<double>(std::max<std::uint64_t>(plan_.total_bytes, 1)), "write");
    }
    writer.finish();
  }

  const FolderPlan& plan_;
  const TensorSource& source_;
  const std::function<void(double fraction, std::string_view what)>& progress_;
  std::uint64_t done_bytes_ = 0;
};

}  // namespace

void check_folder_output(const model::ModelFiles& files, const fs::path& output, bool other_type) {
  if (files.gguf) {
    fail(ErrorKind::usage, "{}: a folder can only be made from a Hugging Face folder, and {} is a GGUF file; give a name ending in .gguf",
         output.string(), files.path.string());
  }
  if (other_type) {
    fail(ErrorKind::usage, "{}: a folder keeps the source's weight types; leave --type away or give a name ending in .gguf", output.string());
  }
  std::error_code error;
  if (fs::exists(output, error)) {
    fail(ErrorKind::usage, "{}: exists already; expected the name of a folder to make, or of a .gguf file", output.string());
  }
}

std::uint64_t write_pruned_folder(const model::ModelFiles& files, const fs::path& output, const model::ExpertSelection& kept,
                                  const std::function<void(double fraction, std::string_view what)>& progress) {
  const FolderPlan plan(*files.text, kept);
  fs::path name = output;
  if (!name.has_filename()) name = name.parent_path();  // a slash at the end
  PartialFolder folder(name);
  for (const auto& entry : fs::directory_iterator(files.path)) {
    const std::string file = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (!entry.is_regular_file() || file == "model.safetensors.index.json") continue;
    if (file == "config.json") {
      write_text(folder.path() / file, pruned_config(read_text_file(entry.path()), entry.path().string(), kept.front().size()));
    } else if (extension == ".json" || extension == ".jinja" || extension == ".txt") {
      write_text(folder.path() / file, read_text_file(entry.path()));
    }
  }
  ShardWriter(plan, *files.text, progress).write(folder.path());
  folder.commit();
  if (progress) progress(1, "write");
  return plan.total_bytes;
}

}  // namespace heirloom::tools
