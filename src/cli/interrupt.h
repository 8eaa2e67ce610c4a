// Ctrl-C as a flag that commands look at, so that an answer can be stopped without losing the program.
#pragma once

namespace heirloom::cli {

/// From now on SIGINT sets the flag; a second SIGINT before the flag was taken ends the program with exit code 130.
void catch_interrupts();
/// True once after each SIGINT.
bool take_interrupt();

}  // namespace heirloom::cli
