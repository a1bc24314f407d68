/*
 * Recipes: patterns, rules and their order, what is refused and where.
 */
#include <criterion/criterion.h>
#include <string.h>

#include "converter/base/mem.h"
#include "converter/recipe.h"

static void glob_is(const char *pattern, const char *name, bool fits)
{
    cr_expect_eq(recipe_glob(pattern, name), fits, "'%s' and '%s'", pattern,
                 name);
}

Test(recipe, patterns)
{
    glob_is("", "", true);
    glob_is("", "a", false);
    glob_is("*", "", true);
    glob_is("*", "a.b", true);
    glob_is("?", "", false);
    glob_is("a?c", "abc", true);
    glob_is("a?c", "ac", false);
    glob_is("a*c", "ac", true);
    glob_is("a*c", "abcbc", true);
    glob_is("a*c", "abcb", false);
    glob_is("*.q_proj.*", "layers.1.self_attn.q_proj.weight", true);
    glob_is("*.q_proj", "layers.1.self_attn.q_proj.weight", false);
    glob_is("layers.1.*", "layers.11.mlp", false);
    glob_is("**a**b**", "xaxbx", true);
    glob_is("*a*b", "ba", false);
}

/* A pattern of stars takes time that grows with the product alone. */
Test(recipe, stars_do_not_explode)
{
    char stars[RECIPE_MAX_PATTERN + 1], name[128];

    for (size_t i = 0; i + 1 < sizeof(stars); i++)
        stars[i] = i % 2 ? 'a' : '*';
    stars[sizeof(stars) - 1] = '\0';
    memset(name, 'a', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    cr_expect(recipe_glob(stars, name)); /* 100 letters of 127 */
    name[sizeof(name) - 2] = 'b';
    cr_expect(!recipe_glob(stars, name));
}

static struct recipe *parse(const char *text)
{
    struct err e = ERR_INIT;
    struct recipe *r = recipe_parse("r", text, strlen(text), &e);

    cr_assert_not_null(r, "%s", e.text);
    return r;
}

static void width_is(struct recipe *r, enum cv_kind part, const char *tensor,
                     int bits)
{
    struct ckpt c;
    const struct cv_lut *l;

    memset(&c, 0, sizeof(c)); /* no needs: canonical names alone */
    l = recipe_find(r, &c, part, tensor);
    cr_expect_eq(l ? l->bits : -1, bits, "'%s': %d bits", tensor,
                 l ? l->bits : -1);
}

Test(recipe, the_last_rule_that_fits_counts)
{
    struct recipe *r = parse("rules:\n"
                             "  - part: ffn\n"
                             "    lut: 4\n"
                             "  - layers: 1-2\n"
                             "    lut: 6,16\n"
                             "  - tensor: '*.v_proj.weight'\n"
                             "    layers: 2\n"
                             "    lut: none\n"
                             "  - tensor: lm_head.weight\n"
                             "    quant: int8\n");

    width_is(r, CV_CHUNK, "layers.0.self_attn.v_proj.weight", 4);
    width_is(r, CV_CHUNK, "layers.1.self_attn.v_proj.weight", 6);
    width_is(r, CV_CHUNK, "layers.2.self_attn.v_proj.weight", 0);
    width_is(r, CV_CHUNK, "layers.2.self_attn.q_proj.weight", 6);
    width_is(r, CV_CHUNK, "layers.12.self_attn.v_proj.weight", 4);
    width_is(r, CV_HEAD, "lm_head.weight", 8);
    width_is(r, CV_EMBEDDINGS, "embed_tokens.weight", -1);
    cr_expect(r->rules[3].lut.linear);
    cr_expect_eq(r->rules[1].lut.group, 16);
    cr_expect_eq(r->rules[0].fitted, 5);
    cr_expect_eq(r->rules[2].line, 6);
    recipe_free(r);
}

Test(recipe, what_is_refused)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        { "", "line 1: a recipe is a mapping" },
        { "[]", "line 1: a recipe is a mapping" },
        { "rules: 3", "line 1: rules is no list" },
        { "rules: []", "line 1: the recipe holds no rule" },
        { "\nrule: []", "line 2: key 'rule' is not known; a recipe has rules" },
        { "rules: [{part: ffn, lut: 4}]\nrules: []", "line 2: key 'rules'" },
        { "rules:\n - lut: 4",
          "line 2: a rule without tensor, part or layers" },
        { "rules:\n - 4", "line 2: a rule is a mapping" },
        { "rules:\n - part: ffn", "neither lut nor quant" },
        { "rules:\n - {part: ffn, lut: 4, quant: int8}", "both lut and quant" },
        { "rules:\n - part: ffn\n   bits: 4",
          "line 3: key 'bits' is not known; a rule has tensor, part, layers" },
        { "rules:\n - part: ffn\n   part: ffn\n   lut: 4",
          "line 3: key 'part' stands there twice" },
        { "rules: []\nrules:\n  - {part: ffn, lut: 4}\n",
          "line 2: key 'rules' stands there twice" },
        { "rules:\n - part: head\n   lut: 4",
          "line 2: part 'head' is none of embeddings, ffn and lmhead" },
        { "rules:\n - part: [ffn]\n   lut: 4", "part is a list or a mapping" },
        { "rules:\n - part: ffn\n   lut: 5", "line 3: lut: '5'" },
        { "rules:\n - part: ffn\n   lut: 7,8", "bits are 1, 2, 3, 4, 6 or 8" },
        { "rules:\n - part: ffn\n   lut: 4,x", "group 'x'" },
        { "rules:\n - part: ffn\n   quant: int6", "line 3: quant: 'int6'" },
        { "rules:\n - layers: 3-1\n   lut: 4", "line 2: layers '3-1'" },
        { "rules:\n - layers: -1\n   lut: 4", "line 2: layers '-1'" },
        { "rules:\n - layers: 1-\n   lut: 4", "line 2: layers '1-'" },
        { "rules:\n - layers: 1-2-3\n   lut: 4", "line 2: layers '1-2-3'" },
        { "rules:\n - layers: 99999999999999999999\n   lut: 4", "layers" },
        { "rules:\n - layers: 1\n   part: lmhead\n   lut: 4",
          "line 2: a rule for layers of the part lmhead" },
        { "rules:\n - tensor: ''\n   lut: 4", "1 to 200 are allowed" },
        { "rules:\n - tensor: 'a[bc]'\n   lut: 4", "'*' and '?' alone" },
        { "rules:\n - tensor: \"a\\0b\"\n   lut: 4", "control character" },
        { "rules: &a [*a]", "a rule is a mapping" },
        { "rules: [", "'r': line 2" },
        { "rules:\n - {part: ffn, lut: 4}\n---\na: b", "more than one YAML" },
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err e = ERR_INIT;

        cr_expect_null(recipe_parse("r", bad[i].text, strlen(bad[i].text), &e));
        cr_expect_eq(e.code, ERR_INPUT);
        cr_expect(strstr(e.text, bad[i].says) && !strncmp(e.text, "'r'", 3),
                  "'%s': %s", bad[i].text, e.text);
    }
}

Test(recipe, layers_lie_within_the_model)
{
    struct recipe *r = parse("rules:\n - layers: 2-4\n   lut: 4");
    struct err e = ERR_INIT;

    cr_expect_eq(recipe_check_layers(r, 5, &e), 0);
    cr_expect_eq(recipe_check_layers(r, 4, &e), -1);
    cr_expect(strstr(e.text, "'r', line 2: layers 2-4; the model has layers "
                             "0 to 3"),
              "%s", e.text);
    recipe_free(r);
}
