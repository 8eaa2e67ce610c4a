#include "backend/cuda/expert_stream.h"

#include <algorithm>

#include "base/check.h"
#include "base/log.h"

namespace heirloom::cuda {

PanelExperts::~PanelExperts() {
  if (locked_by == nullptr) return;
  try {
    locked_by->synchronize(Lane::copy);
  } catch (const Error&) {  // a lost device copies no more
  }
  locked_by->unlock_host(const_cast<std::byte*>(host));
}

ExpertStream::~ExpertStream() {
  for (Slot& slot : slots_) {
    device_.free(slot.data);
    device_.destroy_event(slot.copied);
    device_.destroy_event(slot.used);
  }
  for (Traced& traced : trace_) {
    for (Event event : traced.marks) device_.destroy_event(event);
  }
  device_.destroy_event(trace_start_);
}

void ExpertStream::add(PanelExperts& tensor) {
  HEIRLOOM_CHECK(slots_.empty());
  tensor.index = tensors_.size();
  tensors_.push_back(&tensor);
  host_bytes_ += tensor.host_bytes;
  slot_bytes_ = std::max(slot_bytes_, tensor.host_bytes);
  auto* data = const_cast<std::byte*>(tensor.host);
  if (!refused_lock_ && device_.options().lock_host && device_.lock_host(data, tensor.host_bytes)) {
    tensor.locked_by = &device_;
    locked_bytes_ += tensor.host_bytes;
  } else {
    refused_lock_ = true;  // a limit that was met once is met again
  }
}

void ExpertStream::open() {
  if (!slots_.empty() || tensors_.empty()) return;
  const std::uint64_t free_bytes = device_.ceiling_bytes() - std::min(device_.ceiling_bytes(), device_.used_bytes());
  const auto fitting = static_cast<std::size_t>(free_bytes / 3 / std::max<std::uint64_t>(slot_bytes_, 1));
  const std::size_t wanted = std::clamp(fitting, kMinSlots, kMaxSlots);
  for (std::size_t i = 0; i < wanted; ++i) {
    Slot& slot = slots_.emplace_back();
    slot.data = i < kMinSlots ? device_.alloc(slot_bytes_, "a buffer of streamed experts") : device_.try_alloc(slot_bytes_);
    if (slot.data == nullptr) {
      slots_.pop_back();
      break;
    }
    slot.copied = device_.create_event();
    slot.used = device_.create_event();
  }
  log::info("experts: {} MiB stay in host memory and stream through {} buffers of {} MiB", host_bytes_ >> 20, slots_.size(),
            slot_bytes_ >> 20);
  if (locked_bytes_ < host_bytes_) {
    log::warning("experts: {} of {} MiB are page-locked; copies of the rest run at about a sixth of the link's rate and do not overlap "
                 "with computing (raise the locked-memory limit, ulimit -l)", locked_bytes_ >> 20, host_bytes_ >> 20);
  }
}

Event ExpertStream::mark(Lane lane) {
  Event event = device_.create_event();
  device_.record(event, lane);
  return event;
}

// Fills every free slot with the tensor that comes next.
void ExpertStream::issue() {
  for (; issued_ < freed_ + slots_.size(); ++issued_) {
    Slot& slot = slots_[issued_ % slots_.size()];
    const PanelExperts& tensor = *tensors_[(base_ + issued_) % tensors_.size()];
    if (slot.was_used) device_.wait(Lane::copy, slot.used);
    if (tracing_) trace_.push_back({tensor.index, {mark(Lane::copy), nullptr, nullptr, nullptr}});
    device_.copy_in(slot.data, tensor.host, tensor.host_bytes, Lane::copy);
    if (tracing_) trace_.back().marks[1] = mark(Lane::copy);
    device_.record(slot.copied, Lane::copy);
  }
}

const void* ExpertStream::use(const PanelExperts& tensor) {
  open();
  const auto number_of = [&]() -> std::size_t {
    for (std::size_t n = freed_; n < issued_; ++n) {
      if ((base_ + n) % tensors_.size() == tensor.index) return n;
    }
    return issued_;
  };
  std::size_t number = number_of();
  if (number == issued_) {  // the first use, or one out of order: start the ring there. What is in flight is overwritten in order.
    for (Slot& slot : slots_) {
      device_.record(slot.used, Lane::compute);
      slot.was_used = true;
    }
    base_ = tensor.index;
    issued_ = freed_ = number = 0;
    HEIRLOOM_CHECK(!tracing_ || trace_.empty());
    issue();
  }
  const Slot& slot = slots_[number % slots_.size()];
  device_.wait(Lane::compute, slot.copied);
  if (tracing_ && number >= trace_base_) trace_[number - trace_base_].marks[2] = mark(Lane::compute);
  return slot.data;
}

void ExpertStream::release(const PanelExperts& tensor) {
  // Tensors are released in the order of use, all up to this one.
  while (freed_ < issued_) {
    Slot& slot = slots_[freed_ % slots_.size()];
    const bool last = (base_ + freed_) % tensors_.size() == tensor.index;
    device_.record(slot.used, Lane::compute);
    slot.was_used = true;
    if (tracing_ && freed_ >= trace_base_) trace_[freed_ - trace_base_].marks[3] = mark(Lane::compute);
    ++freed_;
    if (last) break;
  }
  issue();
}

void ExpertStream::start_trace() {
  device_.synchronize(Lane::copy);
  device_.synchronize(Lane::compute);
  tracing_ = true;
  trace_.clear();
  trace_base_ = issued_;
  trace_start_ = mark(Lane::compute);
}

std::vector<StreamTrace> ExpertStream::stop_trace() {
  tracing_ = false;
  device_.synchronize(Lane::copy);
  device_.synchronize(Lane::compute);
  std::vector<StreamTrace> out;
  for (Traced& traced : trace_) {
    if (traced.marks[3] != nullptr) {
      double at[4];
      for (int i = 0; i < 4; ++i) at[i] = device_.elapsed_ms(trace_start_, traced.marks[i]);
      out.push_back({traced.tensor, at[0], at[1], at[2], at[3]});
    }
    for (Event event : traced.marks) device_.destroy_event(event);
  }
  trace_.clear();
  device_.destroy_event(trace_start_);
  trace_start_ = nullptr;
  return out;
}

}  // namespace heirloom::cuda
