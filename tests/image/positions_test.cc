// Position tables against the reference kit, integer for integer and float bit for bit.
#include "image/positions.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "heirloom/error.h"
#include "image/reference_files.h"
#include "support/golden.h"

namespace heirloom {
namespace {

using test::golden;
using test::read_json;
using test::read_safetensors;

TEST(positions, nearest_buckets_match_the_reference_operator_for_every_side_and_size) {
  const auto path = golden("positions/nearest_position_ids.json");
  HEIRLOOM_REQUIRE(path);
  const auto kit = read_json(path);
  int checked = 0;
  for (const auto& [side_text, rows] : kit["table"].items()) {
    const int side = std::stoi(side_text);
    for (const auto& [n_text, buckets] : rows.items()) {
      const int n = std::stoi(n_text);
      ASSERT_EQ(buckets.size(), static_cast<std::size_t>(n));
      for (int i = 0; i < n; ++i) {
        ASSERT_EQ(nearest_bucket(i, n, side), buckets[static_cast<std::size_t>(i)].get<int>())
            << side << " " << n << " " << i;
        ++checked;
      }
    }
  }
  EXPECT_EQ(checked, 3 * 140 * 141 / 2);
}

TEST(positions, nearest_buckets_follow_the_operator_for_all_pairs_up_to_140) {
  // Row I05 of the handed cases, with sides on which the operator's float boundaries are not exact.
  const auto path = golden("layouts/nearest_buckets.json");
  HEIRLOOM_REQUIRE(path);
  const auto less = read_json(path);
  int lower = 0;
  for (int side = 1; side <= 140; ++side) {
    const auto sides = less.find(std::to_string(side));
    for (int n = 1; n <= 140; ++n) {
      std::vector<int> expected;
      for (int i = 0; i < n; ++i) expected.push_back(i * side / n);
      if (sides != less.end() && sides->contains(std::to_string(n))) {
        for (const std::size_t i : (*sides)[std::to_string(n)]) {
          --expected[i];
          ++lower;
        }
      }
      for (int i = 0; i < n; ++i) {
        ASSERT_EQ(nearest_bucket(i, n, side), expected[static_cast<std::size_t>(i)])
            << side << " " << n << " " << i;
      }
    }
  }
  EXPECT_EQ(lower, 1517);
}

TEST(positions, whole_grids_flatten_to_the_rows_of_the_reference) {
  const auto path = golden("positions/nearest_flat.safetensors");
  HEIRLOOM_REQUIRE(path);
  for (const auto& [name, tensor] : read_safetensors(path)) {
    int side = 0;
    GridHw tile;
    ASSERT_EQ(std::sscanf(name.c_str(), "side%d.%dx%d", &side, &tile.h, &tile.w), 3) << name;
    EXPECT_EQ(nearest_position_ids({&tile, 1}, side), tensor.values<std::int32_t>()) << name;
  }
}

TEST(positions, windows_are_gathered_in_the_order_of_the_reference) {
  const auto path = golden("positions/window_index.safetensors");
  HEIRLOOM_REQUIRE(path);
  const auto kit = read_safetensors(path);
  int checked = 0;
  for (const auto& [name, tensor] : kit) {
    const std::size_t dot = name.find('.');
    if (name.substr(dot) != ".window_index") continue;
    std::vector<GridHw> tiles;
    for (std::size_t at = 0; at < dot;) {
      GridHw tile;
      ASSERT_EQ(std::sscanf(name.c_str() + at, "%dx%d", &tile.h, &tile.w), 2) << name;
      tiles.push_back(tile);
      const std::size_t next = name.find('_', at);
      at = next == std::string::npos || next > dot ? dot : next + 1;
    }
    const WindowIndex windows = window_index(tiles);
    EXPECT_EQ(windows.index, tensor.values<std::int32_t>()) << name;
    EXPECT_EQ(windows.cu_seqlens, kit.at(name.substr(0, dot) + ".cu_seqlens").values<std::int32_t>()) << name;
    ++checked;
  }
  EXPECT_EQ(checked, 4);
}

TEST(positions, windows_at_an_odd_edge_are_smaller) {
  const GridHw tile{3, 3};
  const WindowIndex windows = window_index({&tile, 1});
  EXPECT_EQ(windows.index, (std::vector<std::int32_t>{0, 1, 3, 4, 2, 5, 6, 7, 8}));
  EXPECT_EQ(windows.cu_seqlens, (std::vector<std::int32_t>{0, 4, 6, 8, 9}));
}

TEST(positions, qwen_tower_tables_match_bit_for_bit) {
  const auto path = golden("positions/qwen_vision_interp.safetensors");
  HEIRLOOM_REQUIRE(path);
  const auto kit = read_safetensors(path);
  int checked = 0;
  for (const auto& [name, tensor] : kit) {
    const std::size_t end = name.rfind('.');
    if (name.substr(end) != ".indices") continue;
    const std::string base = name.substr(0, end);
    int side = 0;
    GridThw grid;
    ASSERT_EQ(std::sscanf(name.c_str(), "side%d.%dx%dx%d", &side, &grid.t, &grid.h, &grid.w), 4) << name;
    const BilinearTaps taps = bilinear_position_taps({&grid, 1}, side, 2);
    EXPECT_EQ(taps.indices, tensor.values<std::int32_t>()) << name;
    // Bits, so that -0.0 and 0.0 would differ.
    const auto expected = kit.at(base + ".weights").values<std::uint32_t>();
    ASSERT_EQ(taps.weights.size(), expected.size()) << name;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_EQ(std::bit_cast<std::uint32_t>(taps.weights[i]), expected[i]) << name << " " << i;
    }
    if (kit.contains(base + ".position_ids")) {
      EXPECT_EQ(vision_position_ids({&grid, 1}, 2), kit.at(base + ".position_ids").values<std::int32_t>())
          << name;
    }
    if (kit.contains(base + ".cu_seqlens")) {
      EXPECT_EQ(vision_cu_seqlens(std::span<const GridThw>(&grid, 1)),
                kit.at(base + ".cu_seqlens").values<std::int32_t>())
          << name;
    }
    ++checked;
  }
  EXPECT_GE(checked, 13);
}

TEST(positions, mrope_ids_and_delta_match_for_every_layout) {
  const auto path = golden("positions/mrope.safetensors");
  const auto layouts_path = golden("positions/mrope.json");
  HEIRLOOM_REQUIRE(path);
  HEIRLOOM_REQUIRE(layouts_path);
  const auto kit = read_safetensors(path);
  const auto layouts = read_json(layouts_path);
  int checked = 0;
  for (const auto& [name, entry] : layouts["cases"].items()) {
    SCOPED_TRACE(name);
    std::vector<TokenModality> modality;
    for (const std::int32_t type : kit.at(name + ".mm_token_type_ids").values<std::int32_t>()) {
      modality.push_back(static_cast<TokenModality>(type));
    }
    const auto grids = [](const nlohmann::json& list) {
      std::vector<GridThw> result;
      for (const auto& grid : list) result.push_back({grid[0], grid[1], grid[2]});
      return result;
    };
    const MropePositions positions =
        mrope_positions(modality, grids(entry["image_grid_thw"]), grids(entry["video_grid_thw"]), 2);
    EXPECT_EQ(positions.ids, kit.at(name + ".position_ids").values<std::int32_t>());
    EXPECT_EQ(positions.delta, kit.at(name + ".delta").values<std::int32_t>()[0]);
    ++checked;
  }
  EXPECT_EQ(checked, 8);
}

TEST(positions, mrope_refuses_prompts_that_do_not_fit_their_pictures) {
  const std::vector<TokenModality> six(6, TokenModality::image);
  const std::vector<GridThw> grid{{1, 4, 6}};
  EXPECT_EQ(mrope_positions(six, grid, {}, 2).delta, 3 - 6);
  EXPECT_THROW(mrope_positions(six, {}, {}, 2), Error);
  EXPECT_THROW(mrope_positions(std::span(six).first(5), grid, {}, 2), Error);
  EXPECT_THROW(mrope_positions({}, grid, {}, 2), Error);
}

}  // namespace
}  // namespace heirloom
