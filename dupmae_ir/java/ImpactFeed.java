import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.IntBuffer;
import java.nio.charset.StandardCharsets;
import java.util.List;
import org.apache.lucene.analysis.TokenStream;
import org.apache.lucene.analysis.tokenattributes.BytesTermAttribute;
import org.apache.lucene.analysis.tokenattributes.PositionIncrementAttribute;
import org.apache.lucene.analysis.tokenattributes.TermFrequencyAttribute;
import org.apache.lucene.document.BinaryDocValuesField;
import org.apache.lucene.document.Field;
import org.apache.lucene.document.FieldType;
import org.apache.lucene.document.StringField;
import org.apache.lucene.index.IndexWriter;
import org.apache.lucene.index.IndexableField;
import org.apache.lucene.util.BytesRef;

/**
 * Impact documents into an IndexWriter, many in one call, from the arrays of a CSR matrix as they lie in memory: the
 * token stream of a document is a walk over its row. What dupmae_ir.index.lucene does with strings, without them.
 */
public final class ImpactFeed extends TokenStream {
  private final BytesTermAttribute term = addAttribute(BytesTermAttribute.class);
  private final TermFrequencyAttribute frequency = addAttribute(TermFrequencyAttribute.class);
  private final PositionIncrementAttribute position = addAttribute(PositionIncrementAttribute.class);
  private final IndexWriter writer;
  private final BytesRef[] terms;
  private final StringField id = new StringField("id", "", Field.Store.YES);
  private final BinaryDocValuesField sortId = new BinaryDocValuesField("id", new BytesRef());
  private final List<IndexableField> bare = List.of(id, sortId);
  private final List<IndexableField> full;

  private byte[] batch;
  private IntBuffer ids;
  private int impacts, at, end;

  /** {@code vocabulary}: the UTF-8 lengths of all terms as little-endian int32, then their bytes. */
  public ImpactFeed(IndexWriter writer, FieldType kind, byte[] vocabulary, int size) {
    this.writer = writer;
    IntBuffer lengths = ints(vocabulary, 0, size);
    terms = new BytesRef[size];
    for (int i = 0, start = 4 * size; i < size; start += lengths.get(i++)) {
      terms[i] = new BytesRef(vocabulary, start, lengths.get(i));
    }
    full = List.of(id, sortId, new Field("contents", this, kind));
  }

  /**
   * Adds {@code documents} documents with {@code postings} postings in all. {@code bytes}, little-endian: where each
   * document's postings end and where its id's bytes end (int32, running), the term ids (int32), the impacts (uint8),
   * and the UTF-8 bytes of the ids.
   */
  public void add(byte[] bytes, int documents, int postings) throws IOException {
    batch = bytes;
    IntBuffer ends = ints(bytes, 0, documents), idEnds = ints(bytes, 4 * documents, documents);
    ids = ints(bytes, 8 * documents, postings);
    impacts = 8 * documents + 4 * postings;
    int names = impacts + postings, from = 0;
    end = 0;
    for (int i = 0; i < documents; i++) {
      int length = idEnds.get(i) - from;
      id.setStringValue(new String(bytes, names + from, length, StandardCharsets.UTF_8));
      sortId.setBytesValue(new BytesRef(bytes, names + from, length));
      from = idEnds.get(i);
      at = end;
      end = ends.get(i);
      writer.addDocument(at < end ? full : bare);
    }
  }

  @Override
  public void reset() {
    position.setPositionIncrement(1); // the end of the last document left 0
  }

  @Override
  public boolean incrementToken() {
    if (at >= end) return false;
    term.setBytesRef(terms[ids.get(at)]);
    frequency.setTermFrequency(batch[impacts + at] & 255);
    at++;
    return true;
  }

  private static IntBuffer ints(byte[] bytes, int start, int count) {
    return ByteBuffer.wrap(bytes, start, 4 * count).slice().order(ByteOrder.LITTLE_ENDIAN).asIntBuffer();
  }
}
