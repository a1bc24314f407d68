/*
 * Recipes: rules that are taken are complete and within bounds, all others are
 * refused with the file's name.
 */
#include "converter/recipe.h"
#include "tests/fuzz/target.h"

static void check_rule(const struct recipe_rule *r)
{
    static const char name[] = "layers.11.mlp.experts.gate_up_proj";

    FUZZ_CHECK(r->line >= 1);
    FUZZ_CHECK(r->tensor || r->part >= 0 || r->first >= 0);
    FUZZ_CHECK(r->part >= -1 && r->part <= CV_HEAD);
    FUZZ_CHECK((r->first < 0) == (r->last < 0) && r->first <= r->last);
    FUZZ_CHECK(r->lut.bits >= 0 && r->lut.bits <= 8);
    FUZZ_CHECK(!r->lut.linear || r->lut.bits == 4 || r->lut.bits == 8);
    if (!r->tensor)
        return;
    FUZZ_CHECK(strlen(r->tensor) <= RECIPE_MAX_PATTERN);
    FUZZ_CHECK(!recipe_glob(r->tensor, name) || strpbrk(r->tensor, "*?") ||
               !strcmp(r->tensor, name));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = ERR_INIT;
    struct recipe *r = recipe_parse("r.yaml", (const char *)data, size, &e);

    if (!r) {
        FUZZ_CHECK(e.code == ERR_INPUT && !strncmp(e.text, "'r.yaml'", 8));
        return 0;
    }
    FUZZ_CHECK(!e.code && r->n >= 1 && r->n <= RECIPE_MAX_RULES);
    for (size_t i = 0; i < r->n; i++)
        check_rule(&r->rules[i]);
    recipe_free(r);
    return 0;
}
