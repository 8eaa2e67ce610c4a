#include "tools/folder_writer.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/check.h"
#include "base/json.h"
#include "format/safetensors_writer.h"

namespace heirloom::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kShardBytes = 4'000'000'000;  // as transformers cuts them, roughly

fs::path without_slash(const fs::path& name) { return name.has_filename() ? name : name.parent_path(); }

}  // namespace

FolderWriter::FolderWriter(const fs::path& name)
    : final_(without_slash(name)), path_(final_.string() + ".partial-" + std::to_string(::getpid())) {
  std::error_code error;
  fs::create_directory(path_, error);
  if (error) fail(ErrorKind::usage, "{}: cannot create: {}", final_.string(), error.message());
}

FolderWriter::~FolderWriter() {
  std::error_code ignored;
  if (!done_) fs::remove_all(path_, ignored);
}

void FolderWriter::write_text(const std::string& file, const std::string& text) {
  OutputFile out(path_ / file);
  out.write(std::as_bytes(std::span(text)));
  out.commit();
}

void FolderWriter::write_tensors(const std::vector<FolderTensor>& tensors, const WriteProgress& progress) {
  std::vector<std::span<const FolderTensor>> shards;
  std::uint64_t total = 0, in_shard = 0;
  std::size_t first = 0;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (in_shard > 0 && in_shard + tensors[i].bytes > kShardBytes) {
      shards.push_back(std::span(tensors).subspan(first, i - first));
      first = i;
      in_shard = 0;
    }
    in_shard += tensors[i].bytes;
    total += tensors[i].bytes;
  }
  shards.push_back(std::span(tensors).subspan(first));

  std::uint64_t done = 0;
  const auto written = [&](std::uint64_t bytes) {
    done += bytes;
    if (progress) progress(static_cast<double>(done) / static_cast<double>(std::max<std::uint64_t>(total, 1)), "write");
  };
  std::map<std::string, std::string> shard_of;
  for (std::size_t s = 0; s < shards.size(); ++s) {
    const std::string file = shards.size() == 1 ? "model.safetensors"
                                                : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
    write_shard(file, shards[s], written);
    for (const FolderTensor& tensor : shards[s]) shard_of[tensor.spec.name] = file;
  }
  if (shards.size() == 1) return;
  const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", shard_of}};
  write_text("model.safetensors.index.json", index.dump(2) + "\n");
}

void FolderWriter::write_shard(const std::string& file, std::span<const FolderTensor> tensors,
                               const std::function<void(std::uint64_t)>& written) {
  SafetensorsWriter writer(path_ / file, {{"format", "pt"}});
  std::unordered_map<std::string, const FolderTensor*> by_name;
  for (const FolderTensor& tensor : tensors) {
    writer.add_tensor(tensor.spec);
    by_name.emplace(tensor.spec.name, &tensor);
  }
  for (const TensorSpec& spec : writer.begin()) {
    by_name.at(spec.name)->write([&](std::span<const std::byte> bytes) {
      writer.write(bytes);
      written(bytes.size());
    });
  }
  writer.finish();
}

void FolderWriter::commit() {
  std::error_code error;
  fs::rename(path_, final_, error);
  if (error) fail(ErrorKind::bad_file, "{}: cannot rename: {}", final_.string(), error.message());
  done_ = true;
}

}  // namespace heirloom::tools
