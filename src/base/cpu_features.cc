#include "base/cpu_features.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace heirloom {
namespace {

struct Registers {
  std::uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

Registers cpuid(std::uint32_t leaf, std::uint32_t subleaf = 0) {
  Registers r;
  if (__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx) == 0) return {};
  return r;
}

bool bit(std::uint32_t word, int index) { return ((word >> index) & 1u) != 0; }

std::uint64_t xcr0() {
  std::uint32_t low = 0, high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));  // the intrinsic would need -mxsave
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

/// Linux hands out the 8 KiB of tile registers on request only (Documentation/arch/x86/xstate.rst).
bool request_amx_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023;
  constexpr long kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

CpuTier detect() {
  const Registers leaf1 = cpuid(1);
  if (!bit(leaf1.ecx, 9)) return CpuTier::scalar;  // SSSE3
  const bool osxsave = bit(leaf1.ecx, 27);
  const std::uint64_t saved = osxsave ? xcr0() : 0;
  const auto saves = [&](std::uint64_t mask) { return (saved & mask) == mask; };
  const Registers leaf7 = cpuid(7);

  const bool avx2 = saves(0x6) && bit(leaf1.ecx, 28) && bit(leaf1.ecx, 12) && bit(leaf1.ecx, 29) && bit(leaf7.ebx, 5);
  if (!avx2) return CpuTier::ssse3;
  const bool avx512 = saves(0xe6) && bit(leaf7.ebx, 16) && bit(leaf7.ebx, 17) && bit(leaf7.ebx, 30) && bit(leaf7.ebx, 31);
  if (!avx512) return CpuTier::avx2;
  if (!bit(leaf7.ecx, 11)) return CpuTier::avx512;
  const bool amx = saves(0x600e6) && bit(leaf7.edx, 22) && bit(leaf7.edx, 24) && bit(leaf7.edx, 25);
  return amx && request_amx_tiles() ? CpuTier::amx : CpuTier::avx512_vnni;
}

}  // namespace

std::string_view cpu_tier_name(CpuTier tier) {
  switch (tier) {
    case CpuTier::scalar: return "scalar";
    case CpuTier::ssse3: return "ssse3";
    case CpuTier::avx2: return "avx2";
    case CpuTier::avx512: return "avx512";
    case CpuTier::avx512_vnni: return "avx512_vnni";
    case CpuTier::amx: return "amx";
  }
  return "scalar";
}

CpuTier best_cpu_tier() {
  static const CpuTier best = detect();
  return best;
}

CpuTier select_cpu_tier(std::optional<std::string_view> forced) {
  const CpuTier best = best_cpu_tier();
  if (!forced) {
    if (best < CpuTier::ssse3) {
      fail(ErrorKind::device,
           "this CPU has no SSSE3 (Intel since 2006, AMD since 2011), the least that runs at a useful speed; "
           "--cpu-isa scalar runs without it, slowly");
    }
    return std::min(best, CpuTier::avx512_vnni);
  }
  for (const CpuTier tier : kCpuTiers) {
    if (cpu_tier_name(tier) != *forced) continue;
    if (tier > best) {
      fail(ErrorKind::device, "--cpu-isa {}: this machine supports tiers up to {}; choose one of those or leave the option out",
           *forced, cpu_tier_name(best));
    }
    return tier;
  }
  fail(ErrorKind::usage, "--cpu-isa {}: expected scalar, ssse3, avx2, avx512, avx512_vnni or amx", *forced);
}

}  // namespace heirloom
