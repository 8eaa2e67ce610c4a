// What comes with the program: the two demo models by name, and the calibration sets of `prune`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace heirloom {

/// Names that find_model knows.
std::vector<std::string> bundled_model_names();

/// `model` as a path; a bundled name is looked for in models/ of the source tree that the program was built in and in
/// share/heirloom/models beside the folder of the executable. Error{bad_file} naming the places for a bundled name whose
/// file is missing.
std::filesystem::path find_model(const std::string& model);
/// A file of those folders by its path inside them. Error{bad_file} naming the places when it is missing.
std::filesystem::path find_bundled_file(const std::string& file);

}  // namespace heirloom
