// A bound model: the hybrid decoder and, where the family has one, its vision tower.
#include "base/check.h"
#include "model/hybrid_decoder.h"
#include "model/model_files.h"
#include "model/vision_tower.h"

namespace heirloom::model {
namespace {

class BoundModel : public Model {
 public:
  BoundModel(const ModelFiles& files, ops::Backend& backend, const LoadProgress& progress)
      : config_(files.config),
        backend_(backend),
        reader_(files.naming, config_, files.text, files.vision),
        decoder_(backend, config_.text, reader_, progress) {
    if (!config_.vision.present) return;
    tower_ = config_.family == Family::minicpmv4_6 ? make_minicpm_vision_tower(backend, config_.vision, reader_)
                                                   : make_qwen_vision_tower(backend, config_.vision, reader_);
  }

  const ModelConfig& config() const override { return config_; }
  ops::Backend& backend() override { return backend_; }
  ops::StateShape state_shape(DType kv_type) const override { return decoder_.state_shape(kv_type); }
  StepOutput forward(const StepInput& input, Taps* taps) override { return decoder_.forward(input, taps); }
  bool has_vision() const override { return tower_ != nullptr; }
  VisionOutput encode_image(const VisionInput& input, Taps* taps) override {
    if (!tower_) fail(ErrorKind::usage, "this model has no vision part, so it takes no pictures");
    return tower_->encode(input, taps);
  }
  std::uint64_t active_weight_bytes() const override { return decoder_.active_weight_bytes(); }
  std::uint64_t active_parameters(bool with_head) const override { return decoder_.active_parameters(with_head); }
  std::uint64_t weight_bytes() const override {
    return decoder_.weight_bytes() + (tower_ ? tower_->weight_bytes() : 0);
  }

 private:
  ModelConfig config_;
  ops::Backend& backend_;
  WeightReader reader_;
  HybridDecoder decoder_;
  std::unique_ptr<VisionTower> tower_;
};

}  // namespace

std::unique_ptr<Model> bind_model(const ModelFiles& files, ops::Backend& backend,
                                  const std::function<void(double fraction)>& progress) {
  return std::make_unique<BoundModel>(files, backend, progress);
}

}  // namespace heirloom::model
