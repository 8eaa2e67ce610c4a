// The multiply-add rate of each tier's own instruction, from registers: the compute ceiling that `bench` quotes shares of.
// Each function runs `rounds` rounds and returns the operations done (a multiply and an add are two).
#pragma once

#include <cstdint>

namespace heirloom::cpu {

using ComputeProbe = std::uint64_t (*)(std::uint64_t rounds);

namespace ssse3 {
std::uint64_t compute_probe(std::uint64_t rounds);  // pmaddubsw + pmaddwd + paddd on 8-bit values
}
namespace avx2 {
std::uint64_t compute_probe(std::uint64_t rounds);  // the same, 256 bits wide
}
namespace avx512 {
std::uint64_t compute_probe(std::uint64_t rounds);  // the same, 512 bits wide
}
namespace avx512_vnni {
std::uint64_t compute_probe(std::uint64_t rounds);  // vpdpbusd
}

}  // namespace heirloom::cpu
