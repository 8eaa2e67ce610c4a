#include "format/gguf_parts.h"

#include "base/check.h"
#include "base/printable.h"

namespace heirloom {
namespace {

constexpr int kMaxParts = 10'000;  // the name has five digits; real models have tens

// "-00001-of-00003.gguf", the end of a part's name; `number` counts from 1.
std::string part_suffix(int number, int count) {
  return fmt::format("-{:05}-of-{:05}.gguf", number, count);
}

int split_count(const GgufFile& file) {
  return file.metadata().find_count("split.count").value_or(1);
}

}  // namespace

std::shared_ptr<const TensorSource> gguf_tensors(const std::shared_ptr<const GgufFile>& file) {
  if (split_count(*file) <= 1) return file;
  return std::make_shared<GgufParts>(file);
}

GgufParts::GgufParts(std::shared_ptr<const GgufFile> first) {
  const std::filesystem::path path = first->path();
  const int count = split_count(*first);
  const int index = first->metadata().get_count("split.no");
  if (count > kMaxParts)
    fail(ErrorKind::bad_file, "{}: split.count is {}, at most {} parts are allowed", path.string(), count,
         kMaxParts);
  const std::string name = path.filename().string();
  const std::string suffix = part_suffix(index + 1, count);
  if (index >= count || !name.ends_with(suffix)) {
    fail(ErrorKind::bad_file,
         "{}: part {} of {} by its keys, so its name should end in \"{}\" to find the others", path.string(),
         index + 1, count, suffix);
  }
  const std::string stem = name.substr(0, name.size() - suffix.size());
  if (index != 0) {
    fail(ErrorKind::bad_file, "{}: part {} of {}; open the first part, {}", path.string(), index + 1, count,
         printable(stem + part_suffix(1, count)));
  }
  add(std::move(first));
  for (int i = 1; i < count; ++i) {
    const std::filesystem::path other = path.parent_path() / (stem + part_suffix(i + 1, count));
    if (!std::filesystem::exists(other)) {
      fail(ErrorKind::bad_file, "{}: part {} of {} is missing: {}", path.string(), i + 1, count,
           printable(other.filename().string()));
    }
    auto part = std::make_shared<GgufFile>(other);
    if (split_count(*part) != count || part->metadata().get_count("split.no") != i) {
      fail(ErrorKind::bad_file, "{}: its keys say part {} of {}, its name part {} of {}", other.string(),
           part->metadata().get_count("split.no") + 1, split_count(*part), i + 1, count);
    }
    add(std::move(part));
  }
  const auto expected = parts_.front()->metadata().find_u64("split.tensors.count");
  if (expected && *expected != names_.size()) {
    fail(ErrorKind::bad_file, "{}: split.tensors.count is {}, but the {} parts have {} tensors",
         path.string(), *expected, count, names_.size());
  }
}

void GgufParts::add(std::shared_ptr<const GgufFile> part) {
  for (const std::string& name : part->names()) {
    if (!owner_.emplace(name, part.get()).second) {
      fail(ErrorKind::bad_file, "{}: tensor \"{}\" is also in another part", part->path().string(),
           printable(name));
    }
    names_.push_back(name);
  }
  parts_.push_back(std::move(part));
}

const TensorView* GgufParts::find(std::string_view name) const {
  const auto found = owner_.find(std::string(name));
  return found == owner_.end() ? nullptr : found->second->find(name);
}

void GgufParts::release(const TensorView& tensor) const noexcept {
  if (const auto found = owner_.find(tensor.name); found != owner_.end()) found->second->release(tensor);
}

}  // namespace heirloom
