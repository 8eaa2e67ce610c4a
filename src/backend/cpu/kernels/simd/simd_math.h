// exp, sigmoid, softplus and the GELUs in lanes, on top of one of the simd_*.h vocabularies. Polynomials are our own
// minimax fits (Lawson's iteration in double); the errors given are against the exact function, in units of 2^-24.
#pragma once

namespace heirloom::cpu::HEIRLOOM_ISA {
namespace {

/// Relative error below 1.5. The argument is clamped to 88 (no kernel needs more); below -87.3 the result is exactly 0,
/// which is what masked attention scores (-infinity) rely on.
HEIRLOOM_INLINE Vec exp(Vec x) {
  const Vec clamped = min(max(x, set(-87.3f)), set(88.0f));
  const Vec n = round(mul(clamped, set(1.44269504f)));
  // ln 2 in two parts; the high one has 15 trailing zero bits, so that n * high is exact without FMA too.
  Vec r = nmadd(n, set(0.693359375f), clamped);
  r = nmadd(n, set(-2.12194440e-4f), r);
  Vec q = set(0.0013814465f);
  q = madd(q, r, set(0.008368781f));
  q = madd(q, r, set(0.041668393f));
  q = madd(q, r, set(0.1666652f));
  q = madd(q, r, set(0.49999994f));
  const Vec p = add(madd(q, mul(r, r), r), set(1.0f));
  return if_greater(x, set(-87.3f), times_pow2(p, n), zero());
}

HEIRLOOM_INLINE Vec sigmoid(Vec x) { return div(set(1.0f), add(set(1.0f), exp(sub(zero(), x)))); }
HEIRLOOM_INLINE Vec silu(Vec x) { return div(x, add(set(1.0f), exp(sub(zero(), x)))); }

/// log(1 + u) for u >= 0: the rounding of 1 + u is put back to first order, so small u keep their relative precision.
HEIRLOOM_INLINE Vec log1p(Vec u) {
  const Vec w = add(set(1.0f), u);
  Vec m;
  const Vec e = split_exponent(w, m);
  const Vec r = sub(m, set(1.0f));
  Vec q = set(-0.0763443f);
  q = madd(q, r, set(0.1276155f));
  q = madd(q, r, set(-0.13160194f));
  q = madd(q, r, set(0.14201762f));
  q = madd(q, r, set(-0.16623357f));
  q = madd(q, r, set(0.20001227f));
  q = madd(q, r, set(-0.25000823f));
  q = madd(q, r, set(0.3333333f));
  const Vec r2 = mul(r, r);
  const Vec lost = div(sub(u, sub(w, set(1.0f))), w);
  const Vec low = madd(e, set(-2.12194440e-4f), add(madd(mul(r2, r), q, mul(r2, set(-0.5f))), lost));
  return madd(e, set(0.693359375f), add(r, low));
}

/// log(1 + exp(x)), and x itself above 20, as torch has it.
HEIRLOOM_INLINE Vec softplus(Vec x) { return if_greater(x, set(20.0f), x, log1p(exp(min(x, set(20.0f))))); }

/// x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), written with a sigmoid: (1 + tanh(u)) / 2 = sigmoid(2 u).
HEIRLOOM_INLINE Vec gelu_tanh(Vec x) {
  const Vec inner = mul(madd(mul(mul(x, x), x), set(0.044715f), x), set(-1.5957691216f));
  return div(x, add(set(1.0f), exp(inner)));
}

/// x Phi(x). erfc(z) = exp(-z^2) t P(t) with t = 1 / (1 + z / 2); P's relative error is 4e-9, so the small tail of negative
/// x does not come from a difference.
HEIRLOOM_INLINE Vec gelu_erf(Vec x) {
  const Vec z = mul(abs(x), set(0.70710678f));
  const Vec t = div(set(1.0f), madd(z, set(0.5f), set(1.0f)));
  Vec p = set(0.03537591f);
  p = madd(p, t, set(-0.18870887f));
  p = madd(p, t, set(0.37536454f));
  p = madd(p, t, set(-0.28050646f));
  p = madd(p, t, set(-0.030635845f));
  p = madd(p, t, set(0.040900774f));
  p = madd(p, t, set(0.0525461f));
  p = madd(p, t, set(0.18624793f));
  p = madd(p, t, set(0.24506396f));
  p = madd(p, t, set(0.28226393f));
  p = madd(p, t, set(0.282088f));
  const Vec tail = mul(mul(mul(t, p), exp(nmadd(z, z, zero()))), set(0.5f));  // Phi(-|x|)
  return if_greater(x, zero(), nmadd(x, tail, x), mul(x, tail));
}

}  // namespace
}  // namespace heirloom::cpu::HEIRLOOM_ISA
