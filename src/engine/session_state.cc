#include "engine/session_state.h"

#include <xxhash.h>

#include "base/check.h"

namespace heirloom::engine {
namespace {

constexpr std::int64_t kPageTokens = ops::StateShape::kPageTokens;

std::size_t pages_for(std::int64_t tokens) { return static_cast<std::size_t>((tokens + kPageTokens - 1) / kPageTokens); }

void copy_state(StatePool& pool, const StateBlock& from, const StateBlock& to) {
  const ops::StateShape& shape = pool.shape();
  if (shape.num_gdn_layers == 0) return;
  pool.backend().copy(to.conv, from.conv, shape.conv_floats() * sizeof(float));
  pool.backend().copy(to.recurrent, from.recurrent, shape.recurrent_floats() * sizeof(float));
}

}  // namespace

SessionState::SessionState(StatePool& pool) : pool_(&pool), state_(pool.new_state()) {
  const ops::StateShape& shape = pool.shape();
  if (shape.num_gdn_layers == 0) return;
  pool.backend().zero(state_->conv, shape.conv_floats() * sizeof(float));
  pool.backend().zero(state_->recurrent, shape.recurrent_floats() * sizeof(float));
}

SessionState::SessionState(StatePool& pool, const Snapshot& snapshot)
    : pool_(&pool), position_(snapshot.position), history_(snapshot.history), pages_(snapshot.pages), state_(pool.new_state()) {
  HEIRLOOM_CHECK(pages_.size() == pages_for(position_));
  copy_state(pool, *snapshot.state, *state_);
  if (position_ % kPageTokens != 0 && pool.shape().num_attention_layers > 0) {
    PageRef own = pool.new_page();
    pool.backend().copy(own->data, pages_.back()->data, pool.shape().page_bytes());
    pages_.back() = std::move(own);
  }
  for (const PageRef& page : pages_) page_data_.push_back(page->data);
}

ops::SequenceStep SessionState::step(std::int32_t first_row, std::int32_t num_rows,
                                     std::span<const std::int64_t> capture_at) {
  while (pages_.size() < pages_for(position_ + num_rows)) {
    pages_.push_back(pool_->new_page());
    page_data_.push_back(pages_.back()->data);
  }
  for (std::size_t i = static_cast<std::size_t>(position_ / kPageTokens); i < pages_.size(); ++i) pages_[i]->history = history_;
  captures_.clear();
  captured_.clear();
  for (const std::int64_t position : capture_at) {
    captured_.push_back(pool_->new_state());
    captures_.push_back({static_cast<std::int32_t>(position - position_), captured_.back()->conv, captured_.back()->recurrent});
  }
  ops::SequenceStep step;
  step.first_row = first_row;
  step.num_rows = num_rows;
  step.past_tokens = static_cast<std::int32_t>(position_);
  step.conv = state_->conv;
  step.recurrent = state_->recurrent;
  step.captures = captures_;
  step.pages = page_data_;
  return step;
}

std::vector<SnapshotRef> SessionState::advance(std::int32_t num_rows) {
  std::vector<SnapshotRef> snapshots;
  for (std::size_t i = 0; i < captured_.size(); ++i) {
    snapshots.push_back(share_pages(position_ + captures_[i].rows, std::move(captured_[i]), {}));
  }
  captures_.clear();
  captured_.clear();
  position_ += num_rows;
  return snapshots;
}

std::shared_ptr<Snapshot> SessionState::share_pages(std::int64_t position, StateRef state, std::vector<float> logits) const {
  auto snapshot = std::make_shared<Snapshot>();
  snapshot->position = position;
  snapshot->pages.assign(pages_.begin(), pages_.begin() + static_cast<std::ptrdiff_t>(pages_for(position)));
  snapshot->state = std::move(state);
  snapshot->logits = std::move(logits);
  snapshot->history = history_;
  return snapshot;
}

void SessionState::deviate(std::uint64_t what) { history_ = XXH3_64bits_withSeed(&what, sizeof(what), history_ + 1); }

SnapshotRef SessionState::snapshot(std::vector<float> logits) {
  StateRef copy = pool_->new_state();
  copy_state(*pool_, *state_, *copy);
  return share_pages(position_, std::move(copy), std::move(logits));
}

SnapshotRef SessionState::finish(std::vector<float> logits) && {
  auto snapshot = share_pages(position_, std::move(state_), std::move(logits));
  pages_.clear();
  page_data_.clear();
  return snapshot;
}

}  // namespace heirloom::engine
