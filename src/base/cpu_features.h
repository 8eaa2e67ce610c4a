// Which instruction-set tier this CPU and this OS support. A tier exists only if CPUID reports its instructions and XCR0
// says that the OS saves its registers (Intel SDM vol. 1, 13.3 and 14.3).
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace heirloom {

/// Ascending: a tier includes all below it. avx2 implies FMA and F16C; avx512 means F, BW, VL, DQ; amx means tile,
/// int8 and bf16 beside avx512_vnni. A CPU with AVX only runs ssse3.
enum class CpuTier { scalar, ssse3, avx2, avx512, avx512_vnni, amx };

inline constexpr std::array kCpuTiers{CpuTier::scalar, CpuTier::ssse3,       CpuTier::avx2,
                                      CpuTier::avx512, CpuTier::avx512_vnni, CpuTier::amx};

std::string_view cpu_tier_name(CpuTier tier);

/// The highest tier of this machine (for amx: the kernel has granted the tile registers to this process). Computed once.
CpuTier best_cpu_tier();

/// The tier to run: `forced` by name, or the fastest one: the best, but avx512_vnni where there is amx, whose tiles took 0.81 to 0.90 of
/// its prefill speed on the machines measured, with the same bits (docs/kernels.md). Throws Error{usage} for an unknown name and Error{device} for a tier
/// that this machine lacks, never falls back quietly; without a name, a CPU below SSSE3 is an Error{device} that says
/// how to force the scalar tier.
CpuTier select_cpu_tier(std::optional<std::string_view> forced);

}  // namespace heirloom
