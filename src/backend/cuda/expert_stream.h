// Experts that do not fit into GPU memory: they stay in host memory, in the CPU's panel layout, and pass through a ring of device
// buffers when a prompt needs them. The copy of the tensors that come next runs on the copy lane while the compute lane works on
// this one; events keep the two apart. Tensors are used in the order in which they were added, layer after layer, and the ring
// goes on from the last to the first, so a prompt finds its first layers there when it starts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/device.h"
#include "ops/backend.h"

namespace heirloom::cuda {

/// One expert tensor in host memory.
class PanelExperts : public ops::Weight {
 public:
  /// Waits for copies from it and gives its page lock back.
  ~PanelExperts() override;
  std::unique_ptr<ops::Weight> on_cpu;  // the CPU backend's weight, which owns the memory
  const std::byte* host = nullptr;  // experts * panels panels of 16 rows (kernels/panel_rows.h)
  std::uint64_t host_bytes = 0;
  const char* layout = "";          // part of kernel names: "q4_0"
  std::int64_t panels = 0;          // of one expert
  std::uint64_t panel_bytes = 0;
  std::size_t index = 0;            // place in the stream
  Device* locked_by = nullptr;
};

/// When one tensor was copied and used, in ms since the stream's trace began.
struct StreamTrace {
  std::size_t tensor;
  double copy_begin, copy_end, use_begin, use_end;
};

class ExpertStream {
 public:
  explicit ExpertStream(Device& device) : device_(device) {}
  ~ExpertStream();
  ExpertStream(const ExpertStream&) = delete;
  ExpertStream& operator=(const ExpertStream&) = delete;

  /// Takes a tensor into the order of use and page-locks its memory where the driver allows it. Before open().
  void add(PanelExperts& tensor);
  /// Allocates the ring: as many buffers of the largest tensor as a third of the free memory holds, between kMinSlots and
  /// kMaxSlots. Idempotent. Error{does_not_fit} below kMinSlots.
  void open();
  /// Device copy of the tensor, ready for work on the compute lane. It stays until release().
  const void* use(const PanelExperts& tensor);
  /// The compute work issued so far was the last on this tensor: its buffer takes the next one.
  void release(const PanelExperts& tensor);

  std::uint64_t host_bytes() const { return host_bytes_; }
  std::uint64_t locked_bytes() const { return locked_bytes_; }
  std::size_t slots() const { return slots_.size(); }
  std::uint64_t slot_bytes() const { return slot_bytes_; }

  void start_trace();
  std::vector<StreamTrace> stop_trace();

  static constexpr std::size_t kMinSlots = 3;   // gate and up are used together; the third is in flight
  static constexpr std::size_t kMaxSlots = 6;   // two layers

 private:
  struct Slot {
    void* data = nullptr;
    Event copied = nullptr, used = nullptr;
    bool was_used = false;
  };
  struct Traced {
    std::size_t tensor;
    Event marks[4];
  };
  Event mark(Lane lane);
  void issue();

  Device& device_;
  std::vector<PanelExperts*> tensors_;
  std::vector<Slot> slots_;
  std::uint64_t slot_bytes_ = 0, host_bytes_ = 0, locked_bytes_ = 0;
  // Copies are numbered: number n carries tensor (base_ + n) % tensors and lies in slot n % slots. [freed_, issued_) are there.
  std::size_t base_ = 0, issued_ = 0, freed_ = 0;
  bool refused_lock_ = false;
  bool tracing_ = false;
  Event trace_start_ = nullptr;
  std::vector<Traced> trace_;  // by copy number since the trace began
  std::size_t trace_base_ = 0;
};

}  // namespace heirloom::cuda
