/*
 * without_links COMMAND...: runs it where no hard link can be made; exit 77
 * where that cannot be had.
 */
#include <stdio.h>
#include <unistd.h>

#include "t_links.h"

int main(int argc, char **argv)
{
    if (argc < 2)
        return 2;
    if (!t_links_forbid())
        return 77;
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 126;
}
