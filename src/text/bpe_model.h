// Byte-level BPE: the vocabulary, the merge table, and the encoding of one pre-token. No text rules here: what a
// pre-token is, is pre_split's business; special tokens are added_tokens'.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace heirloom::text {

/// Hash of a byte string, for the open-addressing tables of this layer.
std::uint64_t hash_bytes(std::string_view bytes) noexcept;

class BpeModel {
 public:
  /// Largest id a vocabulary may hold; more is refused (published ones stay below 2^19).
  static constexpr std::int32_t kMaxId = (1 << 24) - 1;

  BpeModel() = default;

  /// Adds a token given as raw bytes; a second token with the same bytes keeps the first id's place in lookups. A token
  /// that is not `findable` has bytes but is unknown to find() and to merges, as added tokens are.
  /// Throws bad_file for an id outside 0..kMaxId or used twice.
  void add_token(std::int32_t id, std::string_view bytes, bool findable = true);

  /// Adds the next merge (rank = order of the calls). Throws bad_file if a part or the result is not in the vocabulary.
  void add_merge(std::string_view left, std::string_view right);

  /// Call once after the last add_*; throws bad_file if one of the 256 single bytes has no token.
  void finish();

  std::int32_t find(std::string_view bytes) const noexcept;  // -1: none
  std::string_view bytes(std::int32_t id) const noexcept;    // empty: no such token
  bool contains(std::int32_t id) const noexcept;
  bool encoding_can_make(std::int32_t id) const noexcept;    // a single byte, or the result of a merge; after finish()
  std::int32_t id_limit() const noexcept { return static_cast<std::int32_t>(spans_.size()); }  // largest id + 1

  /// The merges in rank order, as pairs of token bytes.
  std::vector<std::pair<std::string_view, std::string_view>> merges() const;

  /// Appends the ids of one pre-token. O(n log n) in its length, flat stack; thread-safe.
  void encode(std::string_view piece, std::vector<std::int32_t>& out) const;

 private:
  struct Span {
    std::uint32_t offset = 0, size = 0;
    bool present = false;
    bool findable = false;
  };
  struct Merge {
    std::uint64_t pair = kNoPair;
    std::int32_t rank = 0, id = 0;
  };
  static constexpr std::uint64_t kNoPair = ~std::uint64_t{0};
  static std::uint64_t pair_key(std::int32_t left, std::int32_t right) {
    return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 | static_cast<std::uint32_t>(right);
  }
  const Merge* find_merge(std::int32_t left, std::int32_t right) const noexcept;
  void insert_id(std::int32_t id) noexcept;
  void encode_short(std::string_view piece, std::vector<std::int32_t>& out) const;
  void encode_long(std::string_view piece, std::vector<std::int32_t>& out) const;
  void merge_all(std::string_view piece, std::vector<std::int32_t>& out) const;

  std::string arena_;               // bytes of all tokens
  std::vector<Span> spans_;         // by id
  std::vector<std::int32_t> index_; // open addressing over token bytes; -1 = free; size is a power of two
  std::size_t indexed_ = 0;
  std::size_t longest_ = 0;
  std::vector<Merge> merge_list_;   // until finish()
  std::vector<Merge> merges_;       // open addressing; size is a power of two
  std::int32_t byte_id_[256] = {};
  // Whether merging a token's bytes gives the token itself (0 = not asked yet, 1 = yes, 2 = no): most words of ordinary
  // text are one token, so this turns them into one lookup. Filled on demand.
  mutable std::unique_ptr<std::atomic<std::uint8_t>[]> whole_;
};

}  // namespace heirloom::text
