#include "verify/cases.hpp"

#include "core/cache_type.hpp"

namespace attn::verify {
namespace {

constexpr ListedCase kCases[] = {
    // Lengths
    {"b2_n1_h3_d64", "one query, one key: P = 1"},
    {"b1_sq239_sk1_h2_d64", "many queries, one key"},
    {"b1_sq799_sk3_h2_d64", "fewer keys than any block"},
    {"b1_sq511_sk1_h2_d64_causal", "rows above the diagonal see nothing"},
    {"b2_sq2_sk1_h3_d64_causal", "the first of two queries sees nothing"},
    {"b1_sq1_sk239_h2_d64", "decoding, odd cache"},
    {"b2_sq3_sk799_h2_d64_causal", "short queries against a cache, bottom-right aligned"},
    {"b1_sq1023_sk1024_h1_d64_causal", "one key more than queries, both near a block edge"},
    {"b1_sq1024_sk1023_h1_d64_causal", "one key fewer"},
    {"b1_sq2048_sk3577_h1_d32", "partial last blocks after many"},
    {"b1_sq2048_sk3577_h1_d32_causal", "the same, the diagonal far from a block edge"},
    {"b2_sq5_sk0_h2_d16", "no keys: O = 0, LSE = -inf, gradients 0"},
    {"b2_sq5_sk0_h2_d16_sink/maxlogit", "no keys but a sink: LSE = sink"},
    {"b3_n64_h2_d64", "exactly one block"},
    {"b1_n65_h2_d64_causal", "one row and one key past a block"},
    {"b1_n63_h2_d64_causal", "one short of a block"},
    {"b1_sq130_sk128_h2_d64_causaltl", "top-left alignment with more queries than keys"},
    {"b1_sq100_sk300_h2_d64_causaltl", "top-left alignment: the last keys are seen by nobody"},
    {"b1_sq90_sk1100_h1_d64_softcap30", "a thousand keys, each of little weight"},
    {"b1_sq17_sk4096_h1_d64/maxlogit", "few queries, long cache: split over keys"},
    {"b2_sq3_sk1100_hq36_hk9_d32_mask(head%4==0||key<=query+1000)",
     "rows of one Q block of more heads than are read together, some of which see less"},
    // Head sizes
    {"b1_n70_h2_d1", "head_dim 1"},
    {"b1_n70_h2_d40", "head_dim no multiple of 16"},
    {"b1_n70_h2_d59_causal", "odd prime head_dim"},
    {"b1_n70_h2_d111", "odd head_dim above 64"},
    {"b1_n70_h2_d128_causal", "the usual head_dim"},
    {"b1_n70_h2_d256", "wide heads"},
    {"b1_n70_h1_d512_causal", "the widest heads"},
    {"b1_n70_h2_d192_dv128_causal", "V narrower than Q and K"},
    {"b1_n70_h2_d16_dv200", "V wider than Q and K"},
    {"b1_n70_h2_d7_dv1", "V of one element"},
    // Heads
    {"b2_n80_hq8_hk2_d64_causal/maxlogit", "GQA"},
    {"b2_n50_hq6_hk1_d64", "MQA, a group that is no power of two"},
    {"b2_sq1_sk300_hq16_hk2_d64/maxlogit", "decoding with the group in the rows of a block"},
    {"b1_sq3_sk200_hq12_hk4_d64_causal", "rows of a group with different diagonals"},
    // Layouts
    {"b3_sq180_sk1_h2_d64_packed/cuq0,76,110,256_cuk0,1,2,3", "packed with one key a sequence"},
    {"b4_sq120_sk150_hq4_hk2_d64_causal_packed", "packed, lengths random, some short or empty"},
    {"b3_sq120_sk150_h2_d64_causal_packed/padded_maxlogit", "packed and only partly used"},
    {"b3_sq40_sk90_h2_d64_packedq", "packed queries, dense keys"},
    {"b3_sq40_sk90_h2_d64_packedk_causal", "dense queries, packed keys"},
    {"b3_n90_h2_d64_causal/padded_maxlogit", "padding holds NaN"},
    {"b2_n90_h2_d64/padded_usedq0,90_usedk90,0", "an empty sequence on each side"},
    {"b3_sq1_sk300_hq8_hk2_d64_paged16/maxlogit", "decoding from pages"},
    {"b2_sq33_sk300_h2_d64_paged1_causal", "pages of one row"},
    {"b2_sq33_sk300_h2_d64_paged7_causal", "pages that divide no block"},
    {"b2_sq64_sk300_h2_d64_paged256", "pages larger than a block"},
    {"b3_sq20_sk300_hq4_hk2_d64_paged16_packedq_causal", "packed queries, paged keys"},
    {"b6_sq100_sk600_hq8_hk2_d64_packedq_paged16_causal/"
     "cuq0,1,2,90,92,93,101_usedk600,30,500,2,599,100",
     "prompts and decoding in one call, paged keys"},
    {"b4_sq70_sk2500_hq4_hk1_d64_packed_causal_softcap20_sink/"
     "cuq0,1,2,60,61_cuk0,2500,2600,3000,3700",
     "prompts and decoding in one call, packed keys"},
    {"b2_n80_h4_d64/strided", "strides in any order, gaps, unaligned bases"},
    {"b2_n80_h4_d59_causal/strided_padded", "the same with NaN in the gaps"},
    {"b3_sq40_sk64_h4_d64_packed/strided", "strided packed rows"},
    {"b2_sq9_sk100_h4_d64_paged16/strided", "strided pages and page table"},
    {"b2_n70_hq4_hk2_d64_causal_bias_sink/strided_dlse", "all of a call strided"},
    {"b2_n130_hq4_hk2_d64_causal_sink/loose_dlse_maxlogit",
     "LSE and gradients of LSE and sink at any strides"},
    {"b3_sq50_sk70_hq4_hk2_d64_packed_alibi_sink/loose_dlse", "the same, packed, and of slopes"},
    {"b2_n80_hq4_hk2_d64/headmajor", "[batch, heads, seqlen, head_dim] in memory"},
    {"b2_n80_h4_d64_causal/bcastk_bcastv", "K and V with stride 0 over batch and heads"},
    {"b2_n80_h4_d64/bcastq_bcastdo", "Q and dO with stride 0"},
    {"b2_n80_h4_d64_causal/dotransposed", "dO in another order than O"},
    {"b1_n70_h2_d64_causal/far", "offsets past 2^31 elements"},
    {"b2_sq40_sk70_h2_d64_packed/far", "the same, packed"},
    {"b1_sq8_sk100_h2_d64_paged16/far", "the same, paged"},
    // A shared prefix
    {"b3_sq1_sk40_sp300_hq8_hk2_d64", "decoding behind a prefix that is read once"},
    {"b2_sq1_sk40_sp300_hq4_hk2_d64_score(score-3.4028234e38)",
     "parts of the keys that differ in LSE by less than double tells"},
    {"b3_sq4_sk10_sp50_h2_d16_mask(key+2147483647<=position+2147483647)",
     "sums of the mask wrap around in int32 at keys that do not move with the prefix"},
    {"b5_sq1_sk200_sp1500_hq4_hk1_d64_causal_sink/usedk0,200,7,150,64",
     "the same with lengths, one of them 0"},
    {"b4_sq4_sk90_sp400_hq4_hk2_d64_paged16_causal_softcap20/maxlogit",
     "several queries, more than some sequences have own keys: they do not see all of the prefix"},
    {"b4_sq3_sk90_sp260_hq4_hk2_d64_paged16_pagedprefix_causal_sink",
     "a prefix in pages, whose last keys are read for each sequence"},
    {"b3_sq40_sk60_sp200_hq4_hk2_d64_packed_causal_alibi/maxlogit",
     "packed, and a score by distance"},
    {"b6_sq70_sk200_sp500_hq4_hk2_d64_packed_causal/"
     "cuq0,1,2,60,61,62,70_cuk0,100,300,400,401,500,560",
     "prompts and decoding behind a prefix"},
    {"b2_sq30_sk50_sp150_hq4_hk2_d64_window40x0", "a window that ends in the prefix"},
    {"b2_sq30_sk50_sp150_hq4_hk2_d64_causaltl_sink", "own keys that nobody sees"},
    {"b3_sq9_sk20_sp140_h2_d64_documents", "ids of keys of the prefix"},
    {"b3_sq5_sk30_sp300_hq4_hk2_d64_tree/padded_maxlogit", "a draft behind a prefix"},
    {"b3_sq2_sk30_sp400_hq4_hk2_d576_dv512_causal/strided",
     "latent attention, rows at two distances"},
    {"b3_sq2_sk0_sp200_hq4_hk2_d64_sink", "no own keys"},
    {"b2_sq3_sk40_sp130_hq4_hk2_d59_prefix60_scale-0.3",
     "keys that all see by the mask, odd sizes"},
    // Masks
    {"b1_n200_h2_d64_window32x0", "sliding window"},
    {"b1_sq100_sk200_h2_d64_window16x16", "window on both sides, bottom-right aligned"},
    {"b1_n200_h2_d64_window-1x5", "no bound on the left"},
    {"b1_n200_h2_d64_window0x0", "each query sees one key"},
    {"b1_sq200_sk100_h2_d64_window8x0/maxlogit", "most rows see nothing"},
    {"b1_n150_h2_d64_prefix60", "prefix language model"},
    {"b2_n150_h2_d64_documents", "documents"},
    {"b2_n150_h2_d64_causal_documents", "documents and causal"},
    {"b2_sq40_sk120_h2_d64_causal_documents", "documents with a cache"},
    {"b1_sq30_sk20_h2_d64_documents_alibi_biasbr", "queries before the first key"},
    {"b1_n256_h2_d64_butterfly32", "block-sparse, butterfly"},
    {"b1_sq200_sk300_h2_d64_butterfly16_causal", "block-sparse with partial blocks"},
    {"b1_n100_h2_d64_mask((query+key)%3!=0)", "a mask no interval decides"},
    {"b1_n100_h3_d64_mask(head==1||key<=query)", "a mask that depends on the head"},
    {"b2_n100_h2_d64_mask(query<0)", "nothing is seen at all"},
    {"b2_n100_h2_d64_mask(query<0)_sink/maxlogit", "nothing is seen, the sink remains"},
    {"b2_n100_hq4_hk2_d64_mask(seen[batch,key]!=0)_buffer(seen:u8:2x100)",
     "a mask read from a tensor"},
    // Scores
    {"b1_n120_h2_d64_softcap30_causal/maxlogit", "softcap"},
    {"b1_n120_h2_d64_softcap2/q5_k3", "softcap, saturated"},
    {"b2_n120_h4_d64_alibi_causal/maxlogit", "ALiBi"},
    {"b2_n70_h4_d64_bias/maxlogit", "bias of every head, query and key"},
    {"b2_n70_h4_d64_bias2x1x1x70_causal", "bias by batch and key: its gradient sums over the rest"},
    {"b1_n70_h2_d64_bias70x70bf16", "bias of rank 2, bf16"},
    {"b1_n72_h2_d64_bias1x2x72x72bf16", "bias whose rows a GPU reads eight elements at a time"},
    {"b2_n70_h2_d64_softcap5_alibi_bias1x1x70x70", "three changes composed"},
    {"b1_n90_h2_d64_score(select(query>key,score*0.5,score-1.0))", "a score without shorthand"},
    {"b1_n90_h2_d64_score(score+0.3*tanh(w[key%4]*score))_buffer(w:f32:4)",
     "a learned weight inside a function"},
    {"b1_n90_h2_d64_mask(cos(0.3*(query-key))>-0.5)_score(2.0*sin(score/2)+cos(0.7*(query-key)))",
     "waves of the score and of distances"},
    {"b1_n90_h2_d64_causal_score(0.5*score*(1.0+erf(score*0.70710678)))", "GELU of the score"},
    {"b1_n90_h4_d64_score(score-exp2(-0.5*(head+1))*abs(query-key))",
     "ALiBi with slopes that are powers of 2"},
    {"b1_n90_h2_d64_mask(floor(query/3.7)>=to_int(0.3*key))", "bands with edges between keys"},
    {"b1_n90_h2_d64_score(score-0.5*floor(0.7*abs(query-key)))",
     "a floor of products that reach integers: 0.7 * 10 is less than 7 in double alone"},
    {"b1_n90_h2_d64_score(score+w[min(to_int(3.3*log(abs(query-key)+1.0)),15),head])"
     "_buffer(w:f32:16x2)",
     "relative positions in buckets that grow, and the gradient of their table"},
    {"b1_n256_h2_d64_mask(abs((query&3|query>>2&12)-(key&3|key>>2&12))<=2&&(query^key)>>5<=1)",
     "a neighbourhood of places whose coordinates are bits of the index"},
    {"b1_n130_hq4_hk2_d64_mask(key<=query+w&&query-key<20)_score(x*tanh(score/"
     "x)+w)_scalar(w=3)_scalar(x=5.5)",
     "scalars that come with the call"},
    // Sink, dropout, scale
    {"b2_n80_hq4_hk2_d64_sink_causal", "sink"},
    {"b2_sq1_sk500_hq4_hk1_d64_sink", "sink with split keys: counted once"},
    {"b2_n100_hq4_hk2_d64_dropout0.1_seed7_causal/maxlogit", "dropout"},
    {"b1_n100_h2_d64_dropout0.9_seed18446744073709551615_offset4294967297",
     "strong dropout, large seed"},
    {"b1_n100_h2_d64_dropout0.98_seed5_causal",
     "dropout above 31/32, where numbers are compared with the complement"},
    {"b3_n1_hq4_hk2_d3_dropout0.1_seed7636575082152322657",
     "dropout, single keys: P is 1, so a rounded factor is seen"},
    {"b2_n100_hq4_hk2_d64_dropout0.3_seed11_offset4294967301_rngstate_causal",
     "dropout, seed and offset in a tensor"},
    {"b1_n90_h2_d64_scale-0.3/maxlogit", "negative scale"},
    {"b1_n90_h2_d64_scale0", "scale 0: all keys alike"},
    {"b1_n90_h2_d64_scale1_causal", "scale 1: peaked rows"},
    // Numbers
    {"b1_n150_h2_d64/q5_k3", "large scores"},
    {"b1_n150_h2_d128_causal/q5_k3", "large scores, causal"},
    {"b1_n100_h2_d64_causal/negative_q20_k20_maxlogit",
     "scores near -2000: exp underflows without the maximum"},
    {"b1_n100_h2_d64_sink/negative_q20_k20", "the sink outweighs every key"},
    {"b1_n300_h1_d64_causal/q2e3_k1e3", "scores of 2^23: LSE is off by half"},
    {"b1_n90_h2_d64_window20x0_score(select(key==40,exp(score+200.0),score))/maxlogit",
     "a score past the range of float is infinite: NaN in the rows that see it"},
    // Exact in every type, and every key by itself
    {"b2_n150_hq4_hk2_d64_causal/select_maxlogit", "each query finds its key: O is a row of V"},
    {"b2_sq90_sk200_h2_d128_window40x7_scale0.125/select", "the same, window"},
    {"b1_n130_h2_d64_dropout0.5_seed5/select", "the same, times 0 or 2"},
    {"b3_sq100_sk130_h2_d64_packed_causal/select", "the same, packed"},
    {"b2_sq33_sk300_hq4_hk2_d64_paged16_causal/select", "the same, paged"},
    {"b1_sq3_sk700_hq8_hk2_d64_sink/select", "the same, split keys and a sink that weighs nothing"},
    {"b1_sq100_sk128_h2_d64_causal/identity", "V is the identity: O is P"},
    {"b1_n128_hq4_hk2_d64_window20x9_sink/identity", "the same, window and sink"},
    {"b2_sq40_sk120_h2_d64_dropout0.2_seed3_documents/identity", "the same, dropout"},
    {"b2_sq5_sk190_hq6_hk3_d64_paged16_causal/identity", "the same, paged"},
    // What is not asked for
    {"b1_n70_h2_d64_causal/nolse_maxlogit", "no LSE"},
    {"b1_n70_hq4_hk2_d64_causal/nodq", "no dQ"},
    {"b1_n70_hq4_hk2_d64/nodk_nodv", "dQ alone"},
    {"b2_sq40_sk50_hq4_hk2_d64_causal_sink/dlse", "the loss uses LSE"},
    {"b3_n90_h2_d64_packed_softcap5/dlse_padded", "likewise, packed"},
    {"b1_sq90_sk50_h2_d64_causal_dropout0.2_seed3/dlse", "likewise, rows that see no key"},
    // Long; last, as a case's place is its seed
    {"b1_sq12_sk5000_h1_d16_mask((query+key)%3!=0)_softcap5_dropout0.5_seed7",
     "mixed tiles with score and dropout past 4096 keys, and dQ from several ranges of keys"},
    {"b3_sq40_sk300_hq8_hk2_d64_tree_packedq_paged16", "trees of two words a draft token, paged"},
    {"b2_sq9_sk90_hq6_hk3_d64_window20x20_tree1x9x1/padded", "one tree for all, in a window"},
    {"b2_sq3_sk90_hq36_hk1_d64_dv48_list70/vink",
     "a list for each query: rows of one query a block"},
    {"b2_sq5_sk300_hq6_hk3_d64_causal_softcap20_list100_sink/strided_padded_maxlogit",
     "mask and score see the key that an entry names, and no key past the length is one"},
    {"b3_sq20_sk200_hq4_hk2_d40_packedq_paged16_alibi_list33",
     "lists of packed queries over pages, head sizes that no block divides"},
};

}  // namespace

std::span<const ListedCase> listed_cases() { return kCases; }

Case with_dtype(Case c, DType dtype) {
  c.problem.dtype = dtype;
  return c;
}

bool has_backward(const Problem& p) {
  return p.layout_k != Layout::paged && p.key_list == 0 && p.seqlen_prefix == 0 &&
         !core::has_own_types(p) && !core::has_own_type_q(p);
}

std::int64_t scores(const Case& c) {
  return c.problem.batch * c.problem.heads_q * c.problem.seqlen_q *
         (c.problem.seqlen_prefix + c.problem.seqlen_k);
}

}  // namespace attn::verify
