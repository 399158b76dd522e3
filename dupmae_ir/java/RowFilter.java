import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import org.apache.lucene.index.LeafReaderContext;
import org.apache.lucene.search.ConstantScoreScorer;
import org.apache.lucene.search.ConstantScoreWeight;
import org.apache.lucene.search.IndexSearcher;
import org.apache.lucene.search.Query;
import org.apache.lucene.search.QueryVisitor;
import org.apache.lucene.search.ScoreMode;
import org.apache.lucene.search.Scorer;
import org.apache.lucene.search.Weight;
import org.apache.lucene.util.BitSetIterator;
import org.apache.lucene.util.FixedBitSet;

/** Matches the documents whose bits are set, by number: the rows to which a search is restricted. */
public final class RowFilter extends Query {
  private final FixedBitSet rows;

  /** {@code bytes}: one bit per document, lowest first, padded to whole words of 64 bits. */
  public RowFilter(byte[] bytes, int documents) {
    long[] words = new long[bytes.length / 8];
    ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN).asLongBuffer().get(words);
    rows = new FixedBitSet(words, documents);
  }

  @Override
  public Weight createWeight(IndexSearcher searcher, ScoreMode mode, float boost) {
    return new ConstantScoreWeight(this, boost) {
      @Override
      public Scorer scorer(LeafReaderContext leaf) {
        FixedBitSet mine = of(leaf);
        return new ConstantScoreScorer(this, score(), mode, new BitSetIterator(mine, mine.cardinality()));
      }

      @Override
      public boolean isCacheable(LeafReaderContext leaf) {
        return false; // the bits are at hand; Lucene's cache would hold them longer than their owner
      }
    };
  }

  /** The bits of one segment, whose documents are numbered from 0. */
  private FixedBitSet of(LeafReaderContext leaf) {
    int first = leaf.docBase, count = leaf.reader().maxDoc();
    if (first == 0 && count == rows.length()) return rows;
    FixedBitSet mine = new FixedBitSet(count);
    for (int i = 0; i < count; i++) {
      if (rows.get(first + i)) mine.set(i);
    }
    return mine;
  }

  @Override
  public void visit(QueryVisitor visitor) {
    visitor.visitLeaf(this);
  }

  @Override
  public String toString(String field) {
    return "RowFilter(" + rows.cardinality() + ")";
  }

  @Override
  public boolean equals(Object other) {
    return this == other;
  }

  @Override
  public int hashCode() {
    return System.identityHashCode(this);
  }
}
