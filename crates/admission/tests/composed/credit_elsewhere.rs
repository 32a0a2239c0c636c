use crate::support::{Pair, credit_elsewhere};

async fn pair() -> Pair {
    credit_elsewhere(|limits| limits, |credits| credits).await
}

earmark_admission::conformance!(pair);
