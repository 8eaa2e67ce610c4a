#include "text/bpe_model.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>

#include "base/check.h"

namespace heirloom::text {
namespace {

std::uint64_t mix(std::uint64_t x) noexcept {
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93u;
  x ^= x >> 32;
  return x * 0xD6E8FEB86659FD93u;
}

constexpr std::size_t kShortPiece = 48;  // bytes; below, the quadratic scan of a few cache lines beats the heap

}  // namespace

std::uint64_t hash_bytes(std::string_view bytes) noexcept {
  std::uint64_t h = bytes.size() * 0x9E3779B97F4A7C15u;
  const char* p = bytes.data();
  std::size_t n = bytes.size();
  for (; n >= 8; p += 8, n -= 8) {
    std::uint64_t word;
    std::memcpy(&word, p, 8);
    h = mix(h ^ word);
  }
  std::uint64_t word = 0;
  if (n) std::memcpy(&word, p, n);
  h = mix(h ^ word);
  return h ^ h >> 29;
}

void BpeModel::add_token(std::int32_t id, std::string_view bytes, bool findable) {
  if (id < 0 || id > kMaxId) fail(ErrorKind::bad_file, "token id {} is outside 0..{}", id, kMaxId);
  if (arena_.size() + bytes.size() > (std::size_t{1} << 31)) fail(ErrorKind::bad_file, "the vocabulary's text exceeds 2 GiB");
  if (static_cast<std::size_t>(id) >= spans_.size()) spans_.resize(static_cast<std::size_t>(id) + 1);
  Span& span = spans_[static_cast<std::size_t>(id)];
  if (span.present) fail(ErrorKind::bad_file, "token id {} is given to two tokens", id);
  span = {static_cast<std::uint32_t>(arena_.size()), static_cast<std::uint32_t>(bytes.size()), true, findable};
  arena_ += bytes;
  if (!findable) return;
  longest_ = std::max(longest_, bytes.size());
  if ((indexed_ + 1) * 2 > index_.size()) {
    index_.assign(std::max<std::size_t>(1024, index_.size() * 2), -1);
    indexed_ = 0;
    for (std::int32_t i = 0; i < id_limit(); ++i) {
      if (spans_[static_cast<std::size_t>(i)].findable && i != id) insert_id(i);
    }
  }
  insert_id(id);
}

void BpeModel::insert_id(std::int32_t id) noexcept {
  const std::string_view key = bytes(id);
  const std::size_t mask = index_.size() - 1;
  for (std::size_t i = hash_bytes(key) & mask;; i = (i + 1) & mask) {
    if (index_[i] >= 0 && bytes(index_[i]) != key) continue;
    if (index_[i] < 0) {
      index_[i] = id;
      ++indexed_;
    }
    return;
  }
}

std::int32_t BpeModel::find(std::string_view key) const noexcept {
  if (index_.empty()) return -1;
  const std::size_t mask = index_.size() - 1;
  for (std::size_t i = hash_bytes(key) & mask; index_[i] >= 0; i = (i + 1) & mask) {
    if (bytes(index_[i]) == key) return index_[i];
  }
  return -1;
}

bool BpeModel::contains(std::int32_t id) const noexcept {
  return id >= 0 && id < id_limit() && spans_[static_cast<std::size_t>(id)].present;
}

bool BpeModel::encoding_can_make(std::int32_t id) const noexcept {
  if (!contains(id) || !spans_[static_cast<std::size_t>(id)].findable) return false;
  return std::find(std::begin(byte_id_), std::end(byte_id_), id) != std::end(byte_id_) ||
         std::any_of(merges_.begin(), merges_.end(), [&](const Merge& m) { return m.pair != kNoPair && m.id == id; });
}

std::string_view BpeModel::bytes(std::int32_t id) const noexcept {
  if (!contains(id)) return {};
  const Span& span = spans_[static_cast<std::size_t>(id)];
  return std::string_view(arena_).substr(span.offset, span.size);
}

void BpeModel::add_merge(std::string_view left, std::string_view right) {
  const std::int32_t a = find(left);
  const std::int32_t b = find(right);
  std::string both(left);
  both += right;
  const std::int32_t id = find(both);
  const auto rank = merge_list_.size();
  if (a < 0 || b < 0 || id < 0) {
    fail(ErrorKind::bad_file, "merge {} uses a token that is not in the vocabulary; the file is damaged", rank);
  }
  merge_list_.push_back({pair_key(a, b), static_cast<std::int32_t>(rank), id});
}

void BpeModel::finish() {
  for (int b = 0; b < 256; ++b) {
    const char c = static_cast<char>(static_cast<unsigned char>(b));
    byte_id_[b] = find(std::string_view(&c, 1));
    if (byte_id_[b] < 0) {
      fail(ErrorKind::bad_file, "the vocabulary has no token for byte 0x{:02x}; expected a byte-level BPE vocabulary", b);
    }
  }
  merges_.assign(std::bit_ceil(std::max<std::size_t>(16, merge_list_.size() * 2)), Merge{});
  const std::size_t mask = merges_.size() - 1;
  for (const Merge& merge : merge_list_) {
    std::size_t i = mix(merge.pair) & mask;
    while (merges_[i].pair != kNoPair && merges_[i].pair != merge.pair) i = (i + 1) & mask;
    merges_[i] = merge;  // a repeated pair takes the later rank, as in the reference's map
  }
  merge_list_ = {};
  whole_ = std::make_unique<std::atomic<std::uint8_t>[]>(spans_.size());
}

std::vector<std::pair<std::string_view, std::string_view>> BpeModel::merges() const {
  std::vector<Merge> ordered;
  for (const Merge& merge : merges_) {
    if (merge.pair != kNoPair) ordered.push_back(merge);
  }
  std::sort(ordered.begin(), ordered.end(), [](const Merge& a, const Merge& b) { return a.rank < b.rank; });
  std::vector<std::pair<std::string_view, std::string_view>> out;
  for (const Merge& merge : ordered) {
    out.emplace_back(bytes(static_cast<std::int32_t>(merge.pair >> 32)),
                     bytes(static_cast<std::int32_t>(merge.pair & 0xFFFFFFFFu)));
  }
  return out;
}

const BpeModel::Merge* BpeModel::find_merge(std::int32_t left, std::int32_t right) const noexcept {
  const std::uint64_t key = pair_key(left, right);
  const std::size_t mask = merges_.size() - 1;
  for (std::size_t i = mix(key) & mask;; i = (i + 1) & mask) {
    if (merges_[i].pair == key) return &merges_[i];
    if (merges_[i].pair == kNoPair) return nullptr;
  }
}

void BpeModel::encode(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (piece.empty()) return;
  if (piece.size() == 1) {
    out.push_back(byte_id_[static_cast<unsigned char>(piece[0])]);
    return;
  }
  if (piece.size() <= longest_) {
    if (const std::int32_t id = find(piece); id >= 0) {
      auto& whole = whole_[static_cast<std::size_t>(id)];
      const auto known = whole.load(std::memory_order_relaxed);
      if (known == 1) {
        out.push_back(id);
        return;
      }
      if (known == 0) {
        const std::size_t before = out.size();
        merge_all(piece, out);
        const bool itself = out.size() == before + 1 && out.back() == id;
        whole.store(itself ? 1 : 2, std::memory_order_relaxed);
        return;
      }
    }
  }
  merge_all(piece, out);
}

void BpeModel::merge_all(std::string_view piece, std::vector<std::int32_t>& out) const {
  if (piece.size() <= kShortPiece) {
    encode_short(piece, out);
  } else {
    encode_long(piece, out);
  }
}

void BpeModel::encode_short(std::string_view piece, std::vector<std::int32_t>& out) const {
  constexpr std::int32_t kNone = INT32_MAX;
  std::int32_t ids[kShortPiece];
  std::int32_t rank[kShortPiece];    // of the pair (i, i + 1); kNone: no merge
  std::int32_t merged[kShortPiece];  // its result
  std::size_t n = piece.size();
  for (std::size_t i = 0; i < n; ++i) ids[i] = byte_id_[static_cast<unsigned char>(piece[i])];
  const auto look = [&](std::size_t i) {
    const Merge* merge = i + 1 < n ? find_merge(ids[i], ids[i + 1]) : nullptr;
    rank[i] = merge ? merge->rank : kNone;
    merged[i] = merge ? merge->id : 0;
  };
  for (std::size_t i = 0; i < n; ++i) look(i);
  while (n > 1) {
    std::size_t best = 0;
    for (std::size_t i = 1; i + 1 < n; ++i) {
      if (rank[i] < rank[best]) best = i;  // the leftmost of equal ranks
    }
    if (rank[best] == kNone) break;
    ids[best] = merged[best];
    for (std::size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      rank[i] = rank[i + 1];
      merged[i] = merged[i + 1];
    }
    --n;
    look(best);
    if (best > 0) look(best - 1);
  }
  out.insert(out.end(), ids, ids + n);
}

// Doubly linked list of symbols and a min-heap of (rank, position): each merge costs O(log n). A heap entry is stale when
// the pair now at its position has another rank.
void BpeModel::encode_long(std::string_view piece, std::vector<std::int32_t>& out) const {
  constexpr std::uint32_t kEnd = UINT32_MAX;
  constexpr std::uint32_t kNone = UINT32_MAX;
  if (piece.size() >= kEnd) fail(ErrorKind::does_not_fit, "a text of {} bytes is longer than the tokenizer takes", piece.size());
  struct Symbol {
    std::int32_t id;
    std::uint32_t previous, next;
    std::uint32_t rank;   // of the pair starting here
    std::int32_t merged;  // its result
  };
  const auto n = static_cast<std::uint32_t>(piece.size());
  std::vector<Symbol> symbols(n);
  for (std::uint32_t i = 0; i < n; ++i) {
    symbols[i] = {byte_id_[static_cast<unsigned char>(piece[i])], i ? i - 1 : kEnd, i + 1 < n ? i + 1 : kEnd, kNone, 0};
  }
  std::vector<std::uint64_t> heap;
  heap.reserve(n);
  const auto look = [&](std::uint32_t i) {
    Symbol& symbol = symbols[i];
    const Merge* merge = symbol.next != kEnd ? find_merge(symbol.id, symbols[symbol.next].id) : nullptr;
    symbol.rank = merge ? static_cast<std::uint32_t>(merge->rank) : kNone;
    symbol.merged = merge ? merge->id : 0;
    if (merge) heap.push_back(static_cast<std::uint64_t>(symbol.rank) << 32 | i);
    return merge != nullptr;
  };
  for (std::uint32_t i = 0; i < n; ++i) look(i);
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  while (!heap.empty()) {
    const std::uint64_t top = heap.front();
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    heap.pop_back();
    const auto i = static_cast<std::uint32_t>(top & 0xFFFFFFFFu);
    Symbol& symbol = symbols[i];
    if (symbol.rank == kNone || symbol.rank != top >> 32) continue;
    const std::uint32_t eaten = symbol.next;
    symbol.id = symbol.merged;
    symbol.next = symbols[eaten].next;
    if (symbol.next != kEnd) symbols[symbol.next].previous = i;
    symbols[eaten].rank = kNone;
    if (look(i)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
    if (symbol.previous != kEnd && look(symbol.previous)) std::push_heap(heap.begin(), heap.end(), std::greater<>());
  }
  for (std::uint32_t i = 0; i != kEnd; i = symbols[i].next) out.push_back(symbols[i].id);
}

}  // namespace heirloom::text
